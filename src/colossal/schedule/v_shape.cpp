#include <array>
#include <bitset>
#include <map>

#include "colossal/schedule/families.h"
#include "colossal/schedule/search.h"

namespace colossal::schedule {
namespace {

// Building blocks of V-schedules, in which each rank has two chunks of the model. A block is one micro-batch's steps on
// a grid of equal time slots; the next micro-batch repeats it six slots later.

/// The number of slots from one rank to the next, on the way down (from rank 0 to the last) and on the way up. A
/// micro-batch passes down and up; its gradient then passes down and up again. Each chunk has half of the rank's
/// layers. With n ranks, a rank has the live activations of about (down + up) / 3 * n half micro-batches; 1F1B has n
/// whole ones. {1,1} thus needs a third of the activation memory of 1F1B, {2,1} half, {4,2} as much.
struct Slopes {
  int down, up;
};

/// The choice of the free slot after a BackwardInput in which its weight gradients (BackwardWeight) are computed.
enum class Weights {
  FirstFree,     ///< the next free slot; there are more of them at the start, before all blocks overlap
  FirstOfBlock,  ///< the next of the two slots in six that the repeated block does not use
};

constexpr int kInterval = 6;  // two chunks, each with a forward, a BackwardInput and a BackwardWeight
constexpr int kMaxWaiting = 8;

size_t in_block(int slot) { return static_cast<size_t>(slot % kInterval); }

StartTimes plan_of(int ranks, Slopes slopes, const std::array<int, 3>& waits) {
  StartTimes plan{.interval = kInterval};
  const int last = ranks - 1;
  const int turn = slopes.down * last + 1 + waits[0];         // start of forward of the last rank's second chunk
  const int loss = turn + slopes.up * last + 1 + waits[1];    // start of backward of rank 0's second chunk
  const int back = loss + slopes.down * last + 1 + waits[2];  // start of backward of the last rank's first chunk
  for (int rank = 0; rank < ranks; ++rank) {
    plan.forward.push_back(
        {static_cast<double>(slopes.down * rank), static_cast<double>(turn + slopes.up * (last - rank))});
    plan.backward.push_back(
        {static_cast<double>(back + slopes.up * (last - rank)), static_cast<double>(loss + slopes.down * rank)});
  }
  return plan;
}

/// Returns the slots of a block that forwards and backwards occupy.
std::bitset<kInterval> block_of(const StartTimes& plan, size_t rank) {
  std::bitset<kInterval> slots;
  for (const auto* times : {&plan.forward, &plan.backward})
    for (const double time : (*times)[rank]) slots.set(in_block(static_cast<int>(time)));
  return slots;
}

bool fits(const StartTimes& plan) {
  for (size_t rank = 0; rank < plan.forward.size(); ++rank)
    if (block_of(plan, rank).count() < 4) return false;
  return true;
}

std::vector<PipelineOp> repeat_on(const StartTimes& plan, size_t rank, int micro_batches, Weights weights) {
  std::map<int, PipelineOp> slots;
  for (int i = 0; i < micro_batches; ++i) {
    for (int chunk = 0; chunk < 2; ++chunk) {
      slots[static_cast<int>(plan.forward[rank][chunk]) + i * kInterval] = {Action::Forward, i, chunk};
      slots[static_cast<int>(plan.backward[rank][chunk]) + i * kInterval] = {Action::BackwardInput, i, chunk};
    }
  }
  const auto taken = block_of(plan, rank);
  std::vector<std::pair<int, PipelineOp>> backwards;
  for (const auto& [slot, step] : slots)
    if (step.action == Action::BackwardInput) backwards.push_back({slot, step});
  for (const auto& [after, step] : backwards) {
    int slot = after + 1;
    while (slots.count(slot) || (weights == Weights::FirstOfBlock && taken.test(in_block(slot)))) ++slot;
    slots[slot] = {Action::BackwardWeight, step.micro_batch, step.chunk};
  }
  std::vector<PipelineOp> steps;
  for (const auto& [slot, step] : slots) steps.push_back(step);
  return steps;
}

/// Returns plans with these slopes and waits of 0 to 5 slots at each of the three turns (last rank, rank 0, last rank).
/// No two forwards or backwards of a rank share a slot, also after the block is repeated. Returns at most `max_plans`
/// plans, those with the least waiting first, and none with more than 8 slots of waiting in total; empty if no plan
/// fits.
/// See: Pipeline Parallelism with Controllable Memory, arXiv:2405.15362, section 3.
std::vector<StartTimes> v_plans(int ranks, Slopes slopes, size_t max_plans) {
  std::vector<StartTimes> plans;
  for (int waiting = 0; waiting <= kMaxWaiting; ++waiting) {
    for (int first = 0; first < kInterval; ++first) {
      for (int second = 0; second < kInterval; ++second) {
        const int third = waiting - first - second;
        if (third < 0 || third >= kInterval) continue;
        StartTimes plan = plan_of(ranks, slopes, {first, second, third});
        if (fits(plan)) plans.push_back(std::move(plan));
        if (plans.size() == max_plans) return plans;
      }
    }
  }
  return plans;
}

/// Repeats the plan for every micro-batch. Returns each rank's steps in the order of their slots. The times of the
/// slots are not part of the result: a step that can start earlier, does.
Lists repeat(const StartTimes& plan, int micro_batches, Weights weights) {
  Lists lists;
  for (size_t rank = 0; rank < plan.forward.size(); ++rank)
    lists.push_back(repeat_on(plan, rank, micro_batches, weights));
  return lists;
}

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
    if (!guides.empty()) search.propose(Policy{.start_times = &guides.front()});
  }
  for (const StartTimes& plan : v_plans(options.stages, slopes, kMaxPlans)) {
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
