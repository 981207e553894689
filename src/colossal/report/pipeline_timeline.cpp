#include "colossal/report/pipeline_timeline.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace colossal::report {
namespace {

using schedule::Action;
using schedule::Event;
using schedule::PipelineOp;
using schedule::Placement;
using schedule::Timeline;

/// Returns the rank that produces the input of a compute step; `rank` itself if the step needs none or produced it.
int maker_of_input(const Placement& place, int rank, const PipelineOp& step) {
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
  const schedule::OpCost cost = [&](int rank, const PipelineOp& step) {
    const Mean& mean = means.at({rank, step.action, step.chunk});
    return mean.sum / mean.count;
  };
  return schedule::simulate(schedule, cost, [](int, const PipelineOp&) { return 0.0; });
}

}  // namespace

PipelineTimeline beside_plan(Timeline measured, const schedule::Schedule& schedule) {
  PipelineTimeline timeline;
  timeline.planned = planned_timeline(measured, schedule);
  timeline.waited = waits_of(measured, schedule.placement);
  timeline.measured = std::move(measured);
  return timeline;
}

}  // namespace colossal::report
