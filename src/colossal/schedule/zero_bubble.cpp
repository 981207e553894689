#include <algorithm>

#include "colossal/schedule/families.h"
#include "colossal/schedule/search.h"

namespace colossal::schedule {
namespace {

Placement zero_bubble_placement(const Options& options) { return Placement::looped(options.stages, 1); }

/// Makes 1F1B in which rank s computes the weight gradients of a micro-batch s backwards later, which fills the idle
/// time at the end.
Lists delayed_weights(int ranks, int micro_batches) {
  Lists lists;
  for (int rank = 0; rank < ranks; ++rank) {
    const int warm_up = std::min(ranks - 1 - rank, micro_batches);
    std::vector<PipelineOp> steps;
    for (int i = 0; i < warm_up; ++i) steps.push_back({Action::Forward, i, 0});
    for (int i = 0; i < micro_batches + rank; ++i) {
      if (warm_up + i < micro_batches) steps.push_back({Action::Forward, warm_up + i, 0});
      if (i < micro_batches) steps.push_back({Action::BackwardInput, i, 0});
      if (i >= rank) steps.push_back({Action::BackwardWeight, i - rank, 0});
    }
    lists.push_back(steps);
  }
  return lists;
}

/// At equal costs the first proposal is nearly always as good as any other. At unequal costs its weight gradients and
/// too many early forwards delay backwards for which other ranks wait. 1F1B's bound on micro-batches in flight (or
/// twice it) and a little patience prevent that.
Lists zero_bubble_plan(const Options& options, const Placement& placement, double limit) {
  Search search(placement, options, options.memory_limit > 0 ? options.memory_limit : limit);
  const double unit = std::min({options.costs.forward, options.costs.backward_input, options.costs.backward_weight});
  for (const int per_rank : {0, 1, 2}) {
    Policy policy;
    if (per_rank > 0) {
      for (int rank = 0; rank < options.stages; ++rank)
        policy.in_flight.push_back(per_rank * (options.stages - rank - 1) + 1);
    }
    for (const double weight_patience : {0.0, 0.25, 0.5, 1.0}) {
      for (const double patience : {0.0, 0.5}) {
        policy.weight_patience = weight_patience * unit;
        policy.patience = patience * unit;
        search.propose(policy);
      }
    }
  }
  search.propose(delayed_weights(options.stages, options.micro_batches));
  return std::move(search).best();
}

Lists h1_order(const Options& options, const Placement& placement) {
  return zero_bubble_plan(options, placement, options.stages);
}
Lists h2_order(const Options& options, const Placement& placement) {
  return zero_bubble_plan(options, placement, 2 * options.stages - 1);
}

}  // namespace

Family zero_bubble_h1() {
  return {"zero-bubble-h1",
          "weight gradients fill idle time, memory of 1f1b",
          1,
          false,
          true,
          nullptr,
          zero_bubble_placement,
          h1_order};
}
Family zero_bubble_h2() {
  return {"zero-bubble-h2",
          "no idle time at equal costs, twice the memory of 1f1b",
          1,
          false,
          true,
          nullptr,
          zero_bubble_placement,
          h2_order};
}

}  // namespace colossal::schedule
