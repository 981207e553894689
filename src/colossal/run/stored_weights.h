// The weights of a chunk store as tensors that a checkpoint saves and fills, chunk after chunk.
#pragma once
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/memory/chunk_store.h"

namespace colossal::run {

/// What this rank has of each parameter of `store`, trained and frozen, under the parameter's name; shard after shard,
/// so that each is brought once. After filling them: ChunkStore::updated(). `store` need not outlive them.
std::vector<checkpoint::NamedTensor> weights_of(memory::ChunkStore& store);

/// What this rank has of the parameters that checkpoints keep (nn::Treatment::saved), under the names that they have
/// there (nn::Parameter::saved_name).
std::vector<checkpoint::NamedTensor> saved_weights_of(memory::ChunkStore& store);

}  // namespace colossal::run
