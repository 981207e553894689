#include "colossal/train/pipeline_timeline.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "colossal/base/error.h"

namespace colossal::train {
namespace {

using schedule::Action;
using schedule::Event;
using schedule::Placement;
using schedule::Step;
using schedule::Timeline;

/// `schedule` without what executors leave to their caller: a step for each of their events.
schedule::Schedule timed_part(schedule::Schedule schedule) {
  for (auto& list : schedule.ranks)
    std::erase_if(list,
                  [](const Step& step) { return step.action == Action::Reduce || step.action == Action::Update; });
  return schedule;
}

/// The rank that makes the input of a compute step; `rank` itself where it needs none or made it.
int maker_of_input(const Placement& place, int rank, const Step& step) {
  const int stage = place.stage_of(rank, step.chunk), before = step.action == Action::Forward ? stage - 1 : stage + 1;
  if (step.action == Action::BackwardWeight || before < 0 || before >= place.stages()) return rank;
  return place.rank_of(place.pipe_of(step.chunk), before);
}

std::vector<std::vector<double>> waits_of(const Timeline& measured, const Placement& place) {
  std::vector<std::vector<double>> waited(place.ranks(), std::vector<double>(place.ranks()));
  std::vector<bool> has_begun(place.ranks());
  const Event* before = nullptr;
  for (const Event& event : measured.events) {
    if (schedule::is_compute(event.step.action)) {
      const int rank = event.rank, maker = maker_of_input(place, rank, event.step);
      if (has_begun[rank] && maker != rank) waited[rank][maker] += std::max(0.0, event.begin - before->end);
      has_begun[rank] = true;
    }
    before = &event;
  }
  return waited;
}

/// Begins and ends of all ranks, `row` doubles each behind its peak, as events from 0 on.
Timeline measured_timeline(const double* values, int64_t row, const schedule::Schedule& schedule) {
  std::vector<Event> events;
  std::vector<double> peaks;
  double first = std::numeric_limits<double>::infinity();
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    const double* time = values + rank * row;
    peaks.push_back(*time++);
    for (const Step& step : schedule.ranks[rank]) {
      events.push_back({rank, step, time[0], time[1]});
      if (schedule::is_compute(step.action)) first = std::min(first, time[0]);
      time += 2;
    }
  }
  for (Event& event : events) {
    event.begin = (event.begin - first) * 1e3;
    event.end = (event.end - first) * 1e3;
  }
  Timeline timeline = schedule::make_timeline(std::move(events), schedule.placement);
  timeline.peak_live = std::move(peaks);
  return timeline;
}

Timeline planned_timeline(const Timeline& measured, const schedule::Schedule& schedule) {
  struct Mean {
    double sum = 0;
    int count = 0;
  };
  std::map<std::tuple<int, Action, int>, Mean> means;
  for (const Event& event : measured.events) {
    Mean& mean = means[{event.rank, event.step.action, event.step.chunk}];
    mean.sum += event.end - event.begin;
    ++mean.count;
  }
  const schedule::StepCost cost = [&](int rank, const Step& step) {
    const Mean& mean = means.at({rank, step.action, step.chunk});
    return mean.sum / mean.count;
  };
  return schedule::simulate(schedule, cost, [](int, const Step&) { return 0.0; });
}

}  // namespace

std::optional<PipelineTimeline> gather_pipeline_timeline(comm::Mesh& mesh, const parallel::PipelineExecutor& executor) {
  if (mesh.size("pipeline") == 1 || executor.events().empty()) return std::nullopt;
  const schedule::Schedule schedule = timed_part(executor.schedule());
  size_t longest = 0;
  for (const auto& list : schedule.ranks) longest = std::max(longest, list.size());
  require(executor.events().size() == schedule.ranks[executor.rank()].size(), "pipeline",
          "the last step was not finished: it has ", executor.events().size(), " of ",
          schedule.ranks[executor.rank()].size(), " events");

  const int64_t row = 1 + 2 * static_cast<int64_t>(longest);
  at::Tensor mine = at::zeros({row}, at::kDouble), all = at::empty({row * mesh.size("pipeline")}, at::kDouble);
  double* out = mine.mutable_data_ptr<double>();
  *out++ = executor.peak_live();
  for (const Event& event : executor.events()) {
    *out++ = event.begin;
    *out++ = event.end;
  }
  const comm::PhaseScope phase(mesh.world().traffic(), comm::Phase::Other);
  mesh.group("pipeline").all_gather(all, mine).wait();
  if (mesh.world().rank() != 0) return std::nullopt;
  PipelineTimeline timeline;
  timeline.measured = measured_timeline(all.const_data_ptr<double>(), row, schedule);
  timeline.planned = planned_timeline(timeline.measured, schedule);
  timeline.waited = waits_of(timeline.measured, schedule.placement);
  return timeline;
}

}  // namespace colossal::train
