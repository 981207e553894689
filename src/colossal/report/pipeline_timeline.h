// The measured last training step of a pipeline, compared with its plan.
#pragma once
#include <vector>

#include "colossal/schedule/draw.h"

namespace colossal::report {

/// A planned and a measured timeline in milliseconds, without Reduce and Update. The first compute step of each starts
/// at 0.
struct PipelineTimeline {
  /// each step takes the measured mean of its rank, action and chunk; messages take no time
  schedule::Timeline planned;
  schedule::Timeline measured;  ///< peak_live is measured by the executors
  /// [r][p]: time that rank r was idle, after its first compute step, while it waited for a result of rank p
  std::vector<std::vector<double>> waited;
  schedule::Titled titled() const { return {{"planned (ms)", planned}, {"measured (ms)", measured}}; }
};

/// Returns `measured`, which has an event for each step of `schedule`, with its plan and the waiting times between
/// ranks.
PipelineTimeline beside_plan(schedule::Timeline measured, const schedule::Schedule& schedule);

}  // namespace colossal::report
