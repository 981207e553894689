// What the ranks of a pipeline did in their last training step, beside what was planned for it.
#pragma once
#include <vector>

#include "colossal/schedule/draw.h"

namespace colossal::report {

/// Both without Reduce and Update; in milliseconds, the first compute step of each beginning at 0.
struct PipelineTimeline {
  /// Each step takes the measured mean of its rank, action and chunk; messages take no time
  schedule::Timeline planned;
  schedule::Timeline measured;  ///< peak_live as the executors counted it
  /// [r][p]: what rank r stood still, after its first compute step, for something that rank p made
  std::vector<std::vector<double>> waited;
  schedule::Titled titled() const { return {{"planned (ms)", planned}, {"measured (ms)", measured}}; }
};

/// `measured`, an event for each step of `schedule`, beside the plan and with who waited for whom.
PipelineTimeline beside_plan(schedule::Timeline measured, const schedule::Schedule& schedule);

}  // namespace colossal::report
