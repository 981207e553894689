#include "colossal/schedule/simulate.h"

#include <algorithm>
#include <limits>

#include "colossal/base/error.h"

namespace colossal::schedule {
namespace {

constexpr double kNever = -1;

/// The times at which hidden states and gradients are made and at which they arrive, by direction, micro-batch and the
/// stage that reads them.
class Values {
 public:
  struct Times {
    double made = kNever, arrived = kNever;
  };
  explicit Values(const Schedule& schedule)
      : placement_(schedule.placement), stages_(placement_.stages()), times_(2 * schedule.micro_batches * stages_) {}

  /// Returns the input that a compute step or a receive waits for; null at the ends of the chain and for
  /// BackwardWeight.
  Times* input_of(int rank, const PipelineOp& step) {
    const int stage = placement_.stage_of(rank, step.chunk);
    if (step.action == Action::Forward || step.action == Action::ReceiveForward)
      return stage > 0 ? &at(true, step.micro_batch, stage) : nullptr;
    if (step.action == Action::BackwardWeight) return nullptr;
    return stage + 1 < stages_ ? &at(false, step.micro_batch, stage) : nullptr;
  }
  /// Returns the value that a compute step makes or a send transfers; null if there is none.
  Times* output_of(int rank, const PipelineOp& step) {
    const int stage = placement_.stage_of(rank, step.chunk);
    if (step.action == Action::BackwardWeight) return nullptr;
    if (step.action == Action::Forward || step.action == Action::SendForward) {
      return stage + 1 < stages_ ? &at(true, step.micro_batch, stage + 1) : nullptr;
    }
    return stage > 0 ? &at(false, step.micro_batch, stage - 1) : nullptr;
  }

 private:
  Times& at(bool forward, int micro_batch, int stage) {
    return times_[(2 * micro_batch + (forward ? 1 : 0)) * stages_ + stage];
  }
  const Placement placement_;
  const int stages_;
  std::vector<Times> times_;
};

class Clock {
 public:
  Clock(const Schedule& schedule, const OpCost& cost, const OpCost& transfer)
      : schedule_(schedule),
        cost_(cost),
        transfer_(transfer),
        values_(schedule),
        events_(schedule.ranks.size()),
        free_at_(schedule.ranks.size()) {}
  std::vector<Event> run();

 private:
  bool advance(int rank);
  double arrival(int rank, const PipelineOp& step, double made) const;
  void time_transfers();

  const Schedule& schedule_;
  const OpCost &cost_, &transfer_;
  Values values_;
  std::vector<std::vector<Event>> events_;
  std::vector<double> free_at_;
};

double Clock::arrival(int rank, const PipelineOp& step, double made) const {
  const Placement& at = schedule_.placement;
  const bool forward = step.action == Action::Forward;
  const int peer = at.rank_of(at.pipe_of(step.chunk), at.stage_of(rank, step.chunk) + (forward ? 1 : -1));
  if (peer == rank) return made;
  return made +
         transfer_(rank, {forward ? Action::SendForward : Action::SendBackward, step.micro_batch, step.chunk, peer});
}

/// Runs the rank's next step; returns false if that step waits for another rank.
bool Clock::advance(int rank) {
  const PipelineOp& step = schedule_.ranks[rank][events_[rank].size()];
  double begin = free_at_[rank];
  if (is_transfer(step.action)) {
    events_[rank].push_back({rank, step, begin, begin});  // time_transfers() fills in the times at the end
    return true;
  }
  if (is_compute(step.action)) {
    if (const auto* input = values_.input_of(rank, step)) {
      if (input->arrived == kNever) return false;
      begin = std::max(begin, input->arrived);
    }
  }
  const double end = free_at_[rank] = begin + cost_(rank, step);
  if (is_compute(step.action)) {
    if (auto* output = values_.output_of(rank, step)) *output = {end, arrival(rank, step, end)};
  }
  events_[rank].push_back({rank, step, begin, end});
  return true;
}

void Clock::time_transfers() {
  for (auto& rank : events_) {
    for (Event& event : rank) {
      if (!is_transfer(event.step.action)) continue;
      const auto* value = is_send(event.step.action) ? values_.output_of(event.rank, event.step)
                                                     : values_.input_of(event.rank, event.step);
      event.begin = value->made;
      event.end = value->arrived;
    }
  }
}

std::vector<Event> Clock::run() {
  const int ranks = static_cast<int>(events_.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < ranks; ++rank) {
      while (events_[rank].size() < schedule_.ranks[rank].size() && advance(rank)) moved = true;
    }
  }
  std::vector<Event> all;
  for (int rank = 0; rank < ranks; ++rank) {
    if (events_[rank].size() < schedule_.ranks[rank].size()) {
      const PipelineOp& step = schedule_.ranks[rank][events_[rank].size()];
      throw Error("pipeline", concat(schedule_.name, " deadlocks: rank ", rank, " waits forever at step ",
                                     events_[rank].size(), ", ", to_string(step, schedule_.placement.chunks())));
    }
  }
  time_transfers();
  for (auto& rank : events_) all.insert(all.end(), rank.begin(), rank.end());
  return all;
}

}  // namespace

double Timeline::bubble() const {
  const double most = busy.empty() ? 0 : *std::max_element(busy.begin(), busy.end());
  return most > 0 ? (*std::max_element(span.begin(), span.end()) - most) / most : 0;
}

double live_change(const Placement& placement, Action action, double weight_share) {
  const double share = static_cast<double>(placement.pipes()) / placement.chunks();
  switch (action) {
    case Action::Forward:
      return share;
    case Action::Backward:
      return -share;
    case Action::BackwardInput:
      return -share * (1 - weight_share);
    case Action::BackwardWeight:
      return -share * weight_share;
    default:
      return 0;
  }
}

Timeline make_timeline(std::vector<Event> events, const Placement& placement, double weight_share) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const int ranks = placement.ranks();
  Timeline timeline{.events = std::move(events), .ranks = ranks, .chunks = placement.chunks()};
  std::vector<double> begin(ranks, kInfinite), end(ranks, -kInfinite), live(ranks);
  timeline.busy.resize(ranks);
  timeline.span.resize(ranks);
  timeline.peak_live.resize(ranks);
  for (const Event& event : timeline.events) {
    timeline.transfers += is_send(event.step.action);
    if (!is_compute(event.step.action)) continue;
    const int rank = event.rank;
    begin[rank] = std::min(begin[rank], event.begin);
    end[rank] = std::max(end[rank], event.end);
    timeline.busy[rank] += event.end - event.begin;
    live[rank] += live_change(placement, event.step.action, weight_share);
    timeline.peak_live[rank] = std::max(timeline.peak_live[rank], live[rank]);
  }
  for (int rank = 0; rank < ranks; ++rank) timeline.span[rank] = std::max(0.0, end[rank] - begin[rank]);
  if (!timeline.events.empty()) {
    timeline.makespan =
        std::max(0.0, *std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end()));
  }
  return timeline;
}

Timeline simulate(const Schedule& schedule, const OpCost& cost, const OpCost& transfer, double weight_share) {
  return make_timeline(Clock(schedule, cost, transfer).run(), schedule.placement, weight_share);
}

Timeline simulate(const Schedule& schedule, const Costs& costs, double weight_share) {
  return simulate(
      schedule, [&](int rank, const PipelineOp& step) { return cost_of(costs, schedule.placement, rank, step); },
      [&](int, const PipelineOp&) { return costs.transfer; }, weight_share);
}

}  // namespace colossal::schedule
