// Times of the last training step, from all ranks of a pipeline to the one that writes the report.
#pragma once
#include <optional>

#include "colossal/comm/mesh.h"
#include "colossal/parallel/pipeline/executor.h"
#include "colossal/report/pipeline_timeline.h"

namespace colossal::train {

/// The timeline of the last PipelineExecutor::train() of the pipeline that rank 0 of the world belongs to. It is
/// returned on that rank; elsewhere, without a pipeline and before a first step there is none.
///
/// Communication: collective among all ranks of `mesh`; over "pipeline" one all_gather of 1 + 2 * (steps of the longest
///                list) doubles a rank.
std::optional<report::PipelineTimeline> gather_pipeline_timeline(comm::Mesh& mesh,
                                                                 const parallel::PipelineExecutor& executor);

}  // namespace colossal::train
