#include "colossal/schedule/list_scheduler.h"

#include <algorithm>
#include <optional>
#include <tuple>

namespace colossal::schedule {
namespace {

constexpr double kSlack = 1e-9;  // sums of durations and of thirds are not exact

/// One stage of one pipe, on the rank that holds it.
struct Slot {
  int rank, chunk, stage, pipe;
  int before = -1, after = -1;                     // slots of the neighbouring stages
  double forward, backward, weight;                // durations
  std::vector<double> forward_end, backward_end;   // of the micro-batches done so far, in order
  size_t weights_done = 0;
};

struct Candidate {
  double start;
  int kind;      // 0 backward, 1 forward, 2 weight gradients
  int preference;
  int slot;
  bool operator<(const Candidate& other) const {
    return std::tie(start, kind, preference, slot) < std::tie(other.start, other.kind, other.preference, other.slot);
  }
};

class Scheduler {
 public:
  Scheduler(const Placement& placement, int micro_batches, const Costs& costs, const Policy& policy);
  Lists run();

 private:
  double arrival(const Slot& from, const Slot& to, double end) const { return from.rank == to.rank ? end : end + transfer_; }
  std::optional<Candidate> backward(int index) const;
  std::optional<Candidate> forward(int index) const;
  std::optional<Candidate> weight(int index) const;
  std::optional<Candidate> next_of(int rank) const;
  Step execute(const Candidate& chosen);

  const Policy policy_;
  const double transfer_, share_;  // share: of a chunk in the activations of its rank
  const int per_pipe_, chunks_;
  std::vector<Slot> slots_;        // [rank][chunk]
  std::vector<double> free_at_, live_;  // by rank
  std::vector<int> first_micro_batch_;  // by pipe
};

Scheduler::Scheduler(const Placement& placement, int micro_batches, const Costs& costs, const Policy& policy)
    : policy_(policy), transfer_(costs.transfer), share_(static_cast<double>(placement.pipes()) / placement.chunks()),
      per_pipe_(micro_batches / placement.pipes()), chunks_(placement.chunks()), free_at_(placement.ranks()), live_(placement.ranks()) {
  for (int pipe = 0; pipe < placement.pipes(); ++pipe) first_micro_batch_.push_back(pipe * per_pipe_);
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      const int pipe = placement.pipe_of(chunk), stage = placement.stage_of(rank, chunk);
      const auto slot_of = [&](int other) { return placement.rank_of(pipe, other) * chunks_ + placement.chunk_of(pipe, other); };
      const auto cost = [&](Action action) { return cost_of(costs, placement, rank, {action, 0, chunk}); };
      slots_.push_back({.rank = rank, .chunk = chunk, .stage = stage, .pipe = pipe,
                        .before = stage > 0 ? slot_of(stage - 1) : -1, .after = stage + 1 < placement.stages() ? slot_of(stage + 1) : -1,
                        .forward = cost(Action::Forward),
                        .backward = cost(policy.splits_backward ? Action::BackwardInput : Action::Backward),
                        .weight = cost(Action::BackwardWeight)});
    }
  }
}

std::optional<Candidate> Scheduler::backward(int index) const {
  const Slot& slot = slots_[index];
  const size_t next = slot.backward_end.size();
  if (next >= slot.forward_end.size()) return {};
  double ready = slot.forward_end[next];
  if (slot.after >= 0) {
    const Slot& after = slots_[slot.after];
    if (next >= after.backward_end.size()) return {};
    ready = std::max(ready, arrival(after, slot, after.backward_end[next]));
  }
  return Candidate{std::max(free_at_[slot.rank], ready), 0, static_cast<int>(next) * 0 - slot.chunk, index};
}

std::optional<Candidate> Scheduler::forward(int index) const {
  const Slot& slot = slots_[index];
  const size_t next = slot.forward_end.size();
  if (static_cast<int>(next) == per_pipe_) return {};
  const int later = slot.pipe == 0 && share_ < 1 ? chunks_ - slot.chunk : 1;
  if (policy_.limit > 0 && live_[slot.rank] + later * share_ > policy_.limit + kSlack) return {};
  if (policy_.chunk_limit > 0 && next - slot.backward_end.size() >= static_cast<size_t>(policy_.chunk_limit)) return {};
  double ready = 0;
  if (slot.before >= 0) {
    const Slot& before = slots_[slot.before];
    if (next >= before.forward_end.size()) return {};
    ready = arrival(before, slot, before.forward_end[next]);
  }
  return Candidate{std::max(free_at_[slot.rank], ready), 1, -slot.stage, index};
}

std::optional<Candidate> Scheduler::weight(int index) const {
  const Slot& slot = slots_[index];
  if (!policy_.splits_backward || slot.weights_done >= slot.backward_end.size()) return {};
  return Candidate{free_at_[slot.rank], 2, static_cast<int>(slot.weights_done), index};
}

std::optional<Candidate> Scheduler::next_of(int rank) const {
  std::optional<Candidate> best;
  for (int index = rank * chunks_; index < (rank + 1) * chunks_; ++index) {
    for (const auto& candidate : {backward(index), forward(index), weight(index)}) {
      if (candidate && (!best || *candidate < *best)) best = candidate;
    }
  }
  return best;
}

Step Scheduler::execute(const Candidate& chosen) {
  Slot& slot = slots_[chosen.slot];
  Step step{Action::Forward, 0, slot.chunk};
  double end = chosen.start;
  if (chosen.kind == 0) {
    step.action = policy_.splits_backward ? Action::BackwardInput : Action::Backward;
    step.micro_batch = static_cast<int>(slot.backward_end.size());
    slot.backward_end.push_back(end += slot.backward);
    live_[slot.rank] -= share_ * (policy_.splits_backward ? 1 - kWeightShare : 1);
  } else if (chosen.kind == 1) {
    step.micro_batch = static_cast<int>(slot.forward_end.size());
    slot.forward_end.push_back(end += slot.forward);
    live_[slot.rank] += share_;
  } else {
    step.action = Action::BackwardWeight;
    step.micro_batch = static_cast<int>(slot.weights_done++);
    end += slot.weight;
    live_[slot.rank] -= share_ * kWeightShare;
  }
  step.micro_batch += first_micro_batch_[slot.pipe];
  free_at_[slot.rank] = end;
  return step;
}

Lists Scheduler::run() {
  Lists lists(free_at_.size());
  std::vector<std::optional<Candidate>> next(lists.size());
  const auto refresh = [&](int rank) { next[rank] = next_of(rank); };
  for (size_t rank = 0; rank < next.size(); ++rank) refresh(static_cast<int>(rank));
  while (true) {
    int first = -1;
    for (int rank = 0; rank < static_cast<int>(next.size()); ++rank) {
      if (next[rank] && (first < 0 || next[rank]->start < next[first]->start)) first = rank;
    }
    if (first < 0) break;
    const Slot& slot = slots_[next[first]->slot];
    lists[first].push_back(execute(*next[first]));
    refresh(first);
    for (const int neighbour : {slot.before, slot.after}) {
      if (neighbour >= 0) refresh(slots_[neighbour].rank);
    }
  }
  return lists;
}

}  // namespace

Lists list_schedule(const Placement& placement, int micro_batches, const Costs& costs, const Policy& policy) {
  return Scheduler(placement, micro_batches, costs, policy).run();
}

}  // namespace colossal::schedule
