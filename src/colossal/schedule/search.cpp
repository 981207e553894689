#include "colossal/schedule/search.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/schedule/simulate.h"

namespace colossal::schedule {
namespace {

constexpr double kSlack = 1e-9;  // because sums of durations and of thirds are not exact
constexpr double kEqual = 1e-9;  // relative difference below which values count as equal

/// One stage of one pipe, on the rank that holds it.
struct Slot {
  int rank, chunk, stage, pipe;
  int before, after;                              // slots of the neighbouring stages; -1 = none
  double forward, backward, weight;               // durations
  std::vector<double> forward_end, backward_end;  // ends of the completed micro-batches, in order
  size_t weights_done = 0;
};

struct Candidate {
  double wanted, start;  // the start that patience makes of it, and the real one
  int kind;              // 0 is chosen first
  double preference;     // order within a kind: low is chosen first
  int slot;
  Action action;
};

bool operator<(const Candidate& a, const Candidate& b) {
  return std::tie(a.wanted, a.kind, a.preference, a.slot) < std::tie(b.wanted, b.kind, b.preference, b.slot);
}

class Scheduler {
 public:
  Scheduler(const Placement& placement, int micro_batches, const Costs& costs, const Policy& policy);
  Lists run();

 private:
  double arrival(const Slot& from, const Slot& to, double end) const {
    return from.rank == to.rank ? end : end + transfer_;
  }
  bool has_room(const Slot& slot) const;
  std::optional<Candidate> backward(int index) const;
  std::optional<Candidate> forward(int index) const;
  std::optional<Candidate> weight(int index) const;
  std::optional<Candidate> next_of(int rank) const;
  PipelineOp execute(const Candidate& chosen);

  const Policy& policy_;
  const double transfer_, share_;  // share_: part of one chunk in its rank's activations
  const int per_pipe_, chunks_, chunks_of_pipe_;
  std::vector<Slot> slots_;             // [rank][chunk]
  std::vector<double> free_at_, live_;  // values by rank
};

Scheduler::Scheduler(const Placement& placement, int micro_batches, const Costs& costs, const Policy& policy)
    : policy_(policy),
      transfer_(costs.transfer),
      share_(static_cast<double>(placement.pipes()) / placement.chunks()),
      per_pipe_(micro_batches / placement.pipes()),
      chunks_(placement.chunks()),
      chunks_of_pipe_(chunks_ / placement.pipes()),
      free_at_(placement.ranks()),
      live_(placement.ranks()) {
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      const int pipe = placement.pipe_of(chunk), stage = placement.stage_of(rank, chunk);
      const auto slot_of = [&](int other) {
        return placement.rank_of(pipe, other) * chunks_ + placement.chunk_of(pipe, other);
      };
      const auto cost = [&](Action action) { return cost_of(costs, placement, rank, {action, 0, chunk}); };
      slots_.push_back({.rank = rank,
                        .chunk = chunk,
                        .stage = stage,
                        .pipe = pipe,
                        .before = stage > 0 ? slot_of(stage - 1) : -1,
                        .after = stage + 1 < placement.stages() ? slot_of(stage + 1) : -1,
                        .forward = cost(Action::Forward),
                        .backward = cost(policy.splits_backward ? Action::BackwardInput : Action::Backward),
                        .weight = cost(Action::BackwardWeight)});
    }
  }
}

bool Scheduler::has_room(const Slot& slot) const {
  const int later = chunks_of_pipe_ == 1 ? 1 : chunks_ - slot.chunk;  // number of this chunk and later ones
  if (policy_.limit > 0 && live_[slot.rank] + later * share_ > policy_.limit + kSlack) return false;
  return policy_.in_flight.empty() ||
         slot.forward_end.size() - slot.backward_end.size() < static_cast<size_t>(policy_.in_flight[slot.rank]);
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
  const double free = free_at_[slot.rank], start = std::max(free, ready), number = static_cast<double>(next);
  if (const StartTimes* times = policy_.start_times) {
    return Candidate{start, start,           0, times->backward[slot.rank][slot.chunk] + times->interval * number,
                     index, Action::Backward};
  }
  const bool oldest_first = policy_.backwards == Policy::Order::OldestMicroBatch;
  const double preference = (oldest_first ? number * static_cast<double>(slots_.size()) : 0) - slot.stage;
  return Candidate{std::max(free, start - policy_.patience), start, 0, preference, index, Action::Backward};
}

std::optional<Candidate> Scheduler::forward(int index) const {
  const Slot& slot = slots_[index];
  const size_t next = slot.forward_end.size();
  if (static_cast<int>(next) == per_pipe_ || !has_room(slot)) return {};
  double ready = 0;
  if (slot.before >= 0) {
    const Slot& before = slots_[slot.before];
    if (next >= before.forward_end.size()) return {};
    ready = arrival(before, slot, before.forward_end[next]);
  }
  const double start = std::max(free_at_[slot.rank], ready);
  if (const StartTimes* times = policy_.start_times) {
    return Candidate{start, start,
                     0,     times->forward[slot.rank][slot.chunk] + times->interval * static_cast<double>(next),
                     index, Action::Forward};
  }
  return Candidate{start, start, 1, static_cast<double>(-slot.stage), index, Action::Forward};
}

std::optional<Candidate> Scheduler::weight(int index) const {
  const Slot& slot = slots_[index];
  if (!policy_.splits_backward || slot.weights_done >= slot.backward_end.size()) return {};
  const double free = free_at_[slot.rank];
  return Candidate{free + policy_.weight_patience,         free,  2,
                   static_cast<double>(slot.weights_done), index, Action::BackwardWeight};
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

PipelineOp Scheduler::execute(const Candidate& chosen) {
  Slot& slot = slots_[chosen.slot];
  double end = chosen.start, &live = live_[slot.rank];
  size_t number = 0;
  Action action = chosen.action;
  if (action == Action::Forward) {
    number = slot.forward_end.size();
    slot.forward_end.push_back(end += slot.forward);
    live += share_;
  } else if (action == Action::Backward) {
    number = slot.backward_end.size();
    slot.backward_end.push_back(end += slot.backward);
    live -= share_ * (policy_.splits_backward ? 1 - kWeightShare : 1);
    if (policy_.splits_backward) action = Action::BackwardInput;
  } else {
    number = slot.weights_done++;
    end += slot.weight;
    live -= share_ * kWeightShare;
  }
  free_at_[slot.rank] = end;
  return {action, static_cast<int>(number) + slot.pipe * per_pipe_, slot.chunk};
}

Lists Scheduler::run() {
  Lists lists(free_at_.size());
  std::vector<std::optional<Candidate>> next(lists.size());
  for (size_t rank = 0; rank < next.size(); ++rank) next[rank] = next_of(static_cast<int>(rank));
  while (true) {
    int first = -1;
    for (int rank = 0; rank < static_cast<int>(next.size()); ++rank) {
      if (next[rank] && (first < 0 || next[rank]->start < next[first]->start)) first = rank;
    }
    if (first < 0) return lists;
    const Slot& slot = slots_[next[first]->slot];
    lists[first].push_back(execute(*next[first]));
    next[first] = next_of(first);
    for (const int neighbour : {slot.before, slot.after}) {
      if (neighbour >= 0) next[slots_[neighbour].rank] = next_of(slots_[neighbour].rank);
    }
  }
}

}  // namespace

Lists list_schedule(const Placement& placement, int micro_batches, const Costs& costs, const Policy& policy) {
  return Scheduler(placement, micro_batches, costs, policy).run();
}

Search::Search(const Placement& placement, const Options& options, double limit)
    : placement_(placement), options_(options), limit_(limit) {}

void Search::propose(const Policy& policy) {
  Policy within = policy;
  within.limit = limit_;
  const Costs& costs = options_.costs;
  Costs without_transfers = costs;
  without_transfers.transfer = 0;
  const Costs even = policy.splits_backward ? Costs{1, 1, 1} : Costs{1, 0.5, 0.5};
  propose(list_schedule(placement_, options_.micro_batches, costs, within));
  if (without_transfers != costs) propose(list_schedule(placement_, options_.micro_batches, without_transfers, within));
  if (even != costs) propose(list_schedule(placement_, options_.micro_batches, even, within));
}

void Search::propose(Lists lists) {
  const Schedule schedule{options_.name, placement_, options_.micro_batches, std::move(lists)};
  Timeline timeline;
  try {
    timeline = simulate(schedule, options_.costs, kWeightShare);
  } catch (const Error&) {
    return;  // the proposal has a deadlock
  }
  if (limit_ > 0 && *std::max_element(timeline.peak_live.begin(), timeline.peak_live.end()) > limit_ + kEqual) return;
  const double span = *std::max_element(timeline.span.begin(), timeline.span.end()), end = timeline.makespan,
               slack = kEqual * end;
  const bool better =
      best_.empty() || span < best_span_ - slack || (span <= best_span_ + slack && end < best_end_ - slack);
  if (!better) return;
  best_ = schedule.ranks;
  best_span_ = span;
  best_end_ = end;
}

Lists Search::best() && { return std::move(best_); }

}  // namespace colossal::schedule
