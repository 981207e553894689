#include "colossal/schedule/v_pattern.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <map>

namespace colossal::schedule {
namespace {

constexpr int kInterval = 6;  // two chunks, each with a forward, a BackwardInput and a BackwardWeight
constexpr int kMaxWaiting = 8;

size_t in_block(int slot) { return static_cast<size_t>(slot % kInterval); }

Plan plan_of(int ranks, Slopes slopes, const std::array<int, 3>& waits) {
  Plan plan{.interval = kInterval};
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
std::bitset<kInterval> block_of(const Plan& plan, size_t rank) {
  std::bitset<kInterval> slots;
  for (const auto* times : {&plan.forward, &plan.backward})
    for (const double time : (*times)[rank]) slots.set(in_block(static_cast<int>(time)));
  return slots;
}

bool fits(const Plan& plan) {
  for (size_t rank = 0; rank < plan.forward.size(); ++rank)
    if (block_of(plan, rank).count() < 4) return false;
  return true;
}

std::vector<PipelineOp> repeat_on(const Plan& plan, size_t rank, int micro_batches, Weights weights) {
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

}  // namespace

std::vector<Plan> v_plans(int ranks, Slopes slopes, size_t max_plans) {
  std::vector<Plan> plans;
  for (int waiting = 0; waiting <= kMaxWaiting; ++waiting) {
    for (int first = 0; first < kInterval; ++first) {
      for (int second = 0; second < kInterval; ++second) {
        const int third = waiting - first - second;
        if (third < 0 || third >= kInterval) continue;
        Plan plan = plan_of(ranks, slopes, {first, second, third});
        if (fits(plan)) plans.push_back(std::move(plan));
        if (plans.size() == max_plans) return plans;
      }
    }
  }
  return plans;
}

Lists repeat(const Plan& plan, int micro_batches, Weights weights) {
  Lists lists;
  for (size_t rank = 0; rank < plan.forward.size(); ++rank)
    lists.push_back(repeat_on(plan, rank, micro_batches, weights));
  return lists;
}

}  // namespace colossal::schedule
