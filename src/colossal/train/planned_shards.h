// The shards that a chunk store will have: sizes without values, which suffice to get an optimizer's states.
//
//   train::PlannedShards planned = train::plan_shards(parameters, mesh, options, 1);
//   const auto optimizer = optim::make_optimizer(config, planned.trained, {parameters, mesh, at::kMeta});
//   planned.trained[0].bytes();      // values, master weights and states of the first shard
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "colossal/memory/store_plan.h"

namespace colossal::train {

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
