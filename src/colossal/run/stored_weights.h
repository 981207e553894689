// The weights of a chunk store as tensors that a checkpoint saves and fills, chunk by chunk.
#pragma once
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/memory/chunk_store.h"

namespace colossal::run {

/// Returns this rank's part of each parameter of `store`, trained and frozen, under the parameter's name. They are
/// ordered by shard, so that each shard is loaded once. After filling them call ChunkStore::updated(). `store` need not
/// outlive them.
std::vector<checkpoint::NamedTensor> weights_of(memory::ChunkStore& store);

/// Returns this rank's part of the parameters that checkpoints save (nn::Treatment::saved), under their names in the
/// checkpoint (nn::Parameter::saved_name).
std::vector<checkpoint::NamedTensor> saved_weights_of(memory::ChunkStore& store);

}  // namespace colossal::run
