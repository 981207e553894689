// The shards of a chunk store before there is one: sizes alone, so that an optimizer can be asked for its states.
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

struct PlannedShards {
  memory::StorePlan plan;
  std::vector<memory::Shard> trained, frozen;  ///< of the chunks, in their order
  std::vector<size_t> ends;                    ///< of each chunk of the plan: where its shards in `trained` end
};

/// What a ChunkStore of the same arguments would have, in a home that takes `block` bytes or a multiple of it for each
/// tensor. Parameters that stay whole are in no home: they count 0. Their tensors are on the meta device and cannot be
/// read. Makes the groups of ranks that share. Errors: those of memory::plan_store().
PlannedShards plan_shards(nn::Parameters& parameters, comm::Mesh& mesh, const memory::ChunkOptions& options,
                          int64_t block);

}  // namespace colossal::train
