// What the ranks of a pipeline did in their last training step, beside what was planned for it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/parallel/pipeline/executor.h"
#include "colossal/schedule/draw.h"

namespace colossal::train {

/// Both without Reduce and Update; in milliseconds, the first compute step of each beginning at 0.
struct PipelineTimeline {
  /// Each step takes the measured mean of its rank, action and chunk; messages take no time
  schedule::Timeline planned;
  schedule::Timeline measured;  ///< peak_live as the executors counted it
  /// [r][p]: what rank r stood still, after its first compute step, for something that rank p made
  std::vector<std::vector<double>> waited;
  schedule::Titled titled() const { return {{"planned (ms)", planned}, {"measured (ms)", measured}}; }
};

/// Of the last PipelineExecutor::train() of the pipeline that rank 0 of the world belongs to, on that rank; nothing
/// elsewhere, without a pipeline, and before a first step.
///
/// Communication: collective among all ranks of `mesh`; over "pipeline" one all_gather of 1 + 2 * (steps of the longest
///                list) doubles a rank.
std::optional<PipelineTimeline> gather_pipeline_timeline(comm::Mesh& mesh, const parallel::PipelineExecutor& executor);

}  // namespace colossal::train
