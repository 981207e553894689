#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/schedule/families.h"

namespace colossal::schedule {
namespace {

int warm_up_of(const Options& options, int rank) {
  const int p = options.stages, v = options.chunks, m = options.micro_batches;
  return m == p ? m * v : std::min(2 * (p - 1 - rank) + (v - 1) * p, m * v);
}

std::string interleaved_fault(const Options& options) {
  const int p = options.stages, m = options.micro_batches;
  if (m % p != 0) {
    const int below = m / p * p;
    const std::string nearest = below > 0 ? concat(below, " or ", below + p) : concat(p);
    return concat("interleaved needs micro_batches divisible by the ", p, " ranks: got ", m, "; nearest ", nearest);
  }
  const double held = std::min(warm_up_of(options, 0) + 1, m * options.chunks) / static_cast<double>(options.chunks);
  if (options.memory_limit > 0 && options.memory_limit < held) {
    return concat("interleaved keeps ", held, " live activations: got memory_limit ", options.memory_limit,
                  "; use 1f1b or v-half");
  }
  return "";
}

Placement interleaved_placement(const Options& options) { return Placement::looped(options.stages, options.chunks); }

/// Groups of p micro-batches pass one chunk after the other, so the k-th forward and the k-th backward are known
/// without a search.
Lists interleaved_order(const Options& options, const Placement& placement) {
  const int p = options.stages, v = options.chunks, total = options.micro_batches * v;
  const auto micro_batch_of = [&](int k) { return k / (p * v) * p + k % p; };
  const auto chunk_of = [&](int k) { return k % (p * v) / p; };
  Lists lists;
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    const int warm_up = warm_up_of(options, rank);
    std::vector<PipelineOp> steps;
    const auto forward = [&](int k) { steps.push_back({Action::Forward, micro_batch_of(k), chunk_of(k)}); };
    for (int k = 0; k < warm_up; ++k) forward(k);
    for (int k = 0; k < total; ++k) {
      if (warm_up + k < total) forward(warm_up + k);
      steps.push_back({Action::Backward, micro_batch_of(k), v - 1 - chunk_of(k)});
    }
    lists.push_back(steps);
  }
  return lists;
}

}  // namespace

Family interleaved() {
  return {
      "interleaved",    "1f1b with several chunks per rank", 2, true, false, interleaved_fault, interleaved_placement,
      interleaved_order};
}

}  // namespace colossal::schedule
