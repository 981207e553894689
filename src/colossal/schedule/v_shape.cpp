#include "colossal/schedule/v_shape.h"

#include "colossal/schedule/search.h"
#include "colossal/schedule/v_pattern.h"

namespace colossal::schedule {
namespace {

constexpr size_t kMaxPlans = 12;  // limit per slope, because later plans wait longer at the turns

Placement v_placement(const Options& options) { return Placement::zigzag(options.stages, 2); }

/// Proposes both kinds, because repeated building blocks are best if memory is short, and greedy schedules if it is
/// not.
Lists v_plan(const Options& options, const Placement& placement, double limit, Slopes slopes) {
  Search search(placement, options, options.memory_limit > 0 ? options.memory_limit : limit);
  for (const auto order : {Policy::Order::OldestMicroBatch, Policy::Order::DeepestStage}) {
    for (const double patience : {0.0, 0.125}) {
      search.propose(Policy{.backwards = order, .weight_patience = patience * options.costs.backward_weight});
    }
  }
  for (const Slopes guide : {Slopes{1, 1}, Slopes{2, 1}, Slopes{4, 2}}) {
    const auto guides = v_plans(options.stages, guide, 1);
    if (!guides.empty()) search.propose(Policy{.plan = &guides.front()});
  }
  for (const Plan& plan : v_plans(options.stages, slopes, kMaxPlans)) {
    for (const auto weights : {Weights::FirstFree, Weights::FirstOfBlock})
      search.propose(repeat(plan, options.micro_batches, weights));
  }
  return std::move(search).best();
}

Lists zero_order(const Options& options, const Placement& placement) {
  return v_plan(options, placement, options.stages, {4, 2});
}
Lists half_order(const Options& options, const Placement& placement) {
  return v_plan(options, placement, (options.stages + 2) / 2, {2, 1});
}
Lists min_order(const Options& options, const Placement& placement) {
  return v_plan(options, placement, (options.stages + 4) / 3, {1, 1});
}

}  // namespace

Family zero_bubble_v() {
  return {"zero-bubble-v",
          "chunks in a V: no idle time at equal costs, memory of 1f1b",
          2,
          false,
          true,
          nullptr,
          v_placement,
          zero_order};
}

Family v_half() {
  return {"v-half", "chunks in a V: half the memory of 1f1b", 2, false, true, nullptr, v_placement, half_order};
}
Family v_min() {
  return {"v-min", "chunks in a V: a third of the memory of 1f1b", 2, false, true, nullptr, v_placement, min_order};
}

}  // namespace colossal::schedule
