// The storage of parameters, gradients and states by a config: options of the chunk store and of its gradients, and the
// shards that such a store will have.
//
//   const train::StoreOptions stored = train::store_options(config, parameters.options().dtype);
//   memory::ChunkStore store(parameters, mesh, stored.chunks);
//   parallel::GradientReducer reducer(store, stored.gradients);
//
// Sizes without values suffice to get an optimizer's states:
//
//   train::PlannedShards planned = train::plan_shards(parameters, mesh, options, 1);
//   const auto optimizer = optim::make_optimizer(config, planned.trained, {parameters, mesh, at::kMeta});
//   planned.trained[0].bytes();      // values, master weights and states of the first shard
#pragma once
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "colossal/memory/chunk_store.h"
#include "colossal/memory/store_plan.h"
#include "colossal/parallel/data/chunk_gradients.h"
#include "colossal/run/config.h"

namespace colossal::train {

/// How a run stores its parameters and their gradients.
struct StoreOptions {
  /// Options of the store. The caller adds an offload store and a device counter if the run has tiers.
  memory::ChunkOptions chunks;
  /// Micro-batches are summed in fp32 or fp64. In a pipeline, whose micro-batches overlap, gradients are reduced once
  /// per step.
  parallel::GradientOptions gradients;
};

/// Returns the options for parameters of `dtype`.
StoreOptions store_options(const run::Config& config, at::ScalarType dtype);

/// The plan of a chunk store, with shards that have sizes and no values.
struct PlannedShards {
  memory::StorePlan plan;
  std::vector<memory::Shard> trained, frozen;  ///< shards of the chunks, in their order
  std::vector<size_t> ends;                    ///< end of each chunk's shards in `trained`, for the chunks of the plan
};

/// Returns the shards that a ChunkStore with the same arguments would have, in an offload store that rounds each tensor
/// up to a multiple of `block` bytes. Parameters that are not sharded are not offloaded: they count 0. The shards'
/// tensors are on the meta device and cannot be read. Creates the groups of ranks that share chunks. Errors: as
/// memory::plan_store().
PlannedShards plan_shards(nn::Parameters& parameters, comm::Mesh& mesh, const memory::ChunkOptions& options,
                          int64_t block);

}  // namespace colossal::train
