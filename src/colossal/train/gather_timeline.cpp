#include "colossal/train/gather_timeline.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "colossal/base/error.h"

namespace colossal::train {
namespace {

using schedule::Action;
using schedule::Event;
using schedule::PipelineOp;
using schedule::Timeline;

/// Returns `schedule` without the steps that executors leave to their caller, so that each step has one event.
schedule::Schedule timed_part(schedule::Schedule schedule) {
  for (auto& list : schedule.ranks)
    std::erase_if(
        list, [](const PipelineOp& step) { return step.action == Action::Reduce || step.action == Action::Update; });
  return schedule;
}

/// Converts begin and end times of all ranks to events that start at 0. Each rank has `row` doubles, the first of which
/// is its peak.
Timeline measured_timeline(const double* values, int64_t row, const schedule::Schedule& schedule) {
  std::vector<Event> events;
  std::vector<double> peaks;
  double first = std::numeric_limits<double>::infinity();
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    const double* time = values + rank * row;
    peaks.push_back(*time++);
    for (const PipelineOp& step : schedule.ranks[rank]) {
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

}  // namespace

std::optional<report::PipelineTimeline> gather_pipeline_timeline(comm::Mesh& mesh,
                                                                 const parallel::PipelineExecutor& executor) {
  if (mesh.size("pipeline") == 1) return std::nullopt;
  const std::vector<Event> events = executor.events();
  if (events.empty()) return std::nullopt;
  const schedule::Schedule schedule = timed_part(executor.schedule());
  size_t longest = 0;
  for (const auto& list : schedule.ranks) longest = std::max(longest, list.size());
  const size_t wanted = schedule.ranks[executor.rank()].size();
  require(events.size() == wanted, "pipeline", "the last step was not finished: it has ", events.size(), " of ", wanted,
          " events");

  const int64_t row = 1 + 2 * static_cast<int64_t>(longest);
  at::Tensor mine = at::zeros({row}, at::kDouble), all = at::empty({row * mesh.size("pipeline")}, at::kDouble);
  double* out = mine.mutable_data_ptr<double>();
  *out++ = executor.peak_live();
  for (const Event& event : events) {
    *out++ = event.begin;
    *out++ = event.end;
  }
  const comm::PhaseScope phase(mesh.world().traffic(), comm::Phase::Other);
  mesh.group("pipeline").all_gather(all, mine).wait();
  if (mesh.world().rank() != 0) return std::nullopt;
  return report::beside_plan(measured_timeline(all.const_data_ptr<double>(), row, schedule), schedule);
}

}  // namespace colossal::train
