#include "colossal/nn/meant_load.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/nn/expert_hops.h"

namespace colossal::nn {
namespace {

/// A variable of the thread and not an argument, as of tensor::MeantDevice: layers of all kinds lie between.
double& meant_load() {
  thread_local double load = 1;
  return load;
}

}  // namespace

MeantLoad::MeantLoad(double load) : before_(std::exchange(meant_load(), load)) {}
MeantLoad::~MeantLoad() { meant_load() = before_; }

std::vector<int64_t> meant_counts(int64_t assignments, int64_t tokens, int64_t count, const ExpertRanks& ranks) {
  const int64_t here = (count + ranks.ranks() - 1) / ranks.ranks(), first = std::min(count, ranks.rank() * here),
                own = std::min(count, first + here) - first;
  if (meant_load() == 1 || ranks.ranks() == 1 || own == 0) return even_counts(assignments, count);
  const double mean = static_cast<double>(assignments) / static_cast<double>(ranks.ranks());
  int64_t left = std::min({assignments, own * tokens, static_cast<int64_t>(std::ceil(meant_load() * mean))});
  std::vector<int64_t> counts = even_counts(assignments - left, count - own);
  std::vector<int64_t> of_rank;
  for (int64_t e = 0; e < own; ++e) {
    of_rank.push_back(std::min(left, tokens));
    left -= of_rank.back();
  }
  counts.insert(counts.begin() + first, of_rank.begin(), of_rank.end());
  return counts;
}

}  // namespace colossal::nn
