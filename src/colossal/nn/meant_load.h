// The load that a recorded run assumes for the experts of its rank. On meta there are no choices of experts, so counts
// of assignments are invented.
//
//   const nn::MeantLoad load(1.4);       // this rank computes 1.4 times the mean of the ranks that exchange tokens
//   const std::vector<int64_t> counts = nn::meant_counts(assignments, tokens, 8, *ranks);
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/nn/expert_ranks.h"

namespace colossal::nn {

/// Sets the load of this rank's experts in passes on meta, on this thread, during its lifetime: their assignments over
/// the mean of the ranks that exchange tokens. The innermost scope applies. Without a scope the load is 1, and every
/// expert has the same share.
class MeantLoad {
 public:
  explicit MeantLoad(double load);
  ~MeantLoad();
  MeantLoad(const MeantLoad&) = delete;
  MeantLoad& operator=(const MeantLoad&) = delete;

 private:
  const double before_;
};

/// Returns how many of `assignments` choose each of `count` experts: with the load 1 the same share each. Otherwise the
/// experts of this rank have its load, as few of them as `tokens` allow, because an expert has a token at most once.
/// All other experts have the same share of the rest.
std::vector<int64_t> meant_counts(int64_t assignments, int64_t tokens, int64_t count, const ExpertRanks& ranks);

}  // namespace colossal::nn
