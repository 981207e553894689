// Runs a traced function operator by operator, its regions block by block: the one loop of all models.
//
//   const std::vector<at::Tensor> out = auto_chunk::run(graph, schedule_of(graph, plan), {s, z});
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "colossal/auto_chunk/schedule.h"

namespace colossal::auto_chunk {

/// Returns what the function returns, the same numbers whatever the schedule: blocks are computed apart. Without
/// gradients. A schedule without loops also frees what nothing reads any more, and adds in place where it can.
///
/// `inputs` that ChunkOptions names as overwritten hold other values afterwards; their memory is freed where the pass
/// needs it no more, so callers move them here. Weights are read by handle, as traced.
/// Memory: Timeline::peak, and what operators take for themselves while they run.
/// Errors ("auto_chunk"): another number of inputs, or inputs of other shapes or dtypes, than traced.
std::vector<at::Tensor> run(const ChunkGraph& graph, const Schedule& schedule, std::vector<at::Tensor> inputs);

}  // namespace colossal::auto_chunk
