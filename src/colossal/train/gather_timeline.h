// Gathers the times of the last training step from all ranks of a pipeline on the rank that writes the report.
#pragma once
#include <optional>

#include "colossal/comm/mesh.h"
#include "colossal/parallel/pipeline/executor.h"
#include "colossal/report/pipeline_timeline.h"

namespace colossal::train {

/// Returns the timeline of the last PipelineExecutor::train() of the pipeline to which rank 0 of the world belongs.
/// Only that rank gets it. Other ranks get none; so does rank 0 without a pipeline or before the first step.
///
/// Communication: collective among all ranks of `mesh`: one all_gather over "pipeline" of 1 + 2 * (steps of the longest
///                list) doubles per rank.
std::optional<report::PipelineTimeline> gather_pipeline_timeline(comm::Mesh& mesh,
                                                                 const parallel::PipelineExecutor& executor);

}  // namespace colossal::train
