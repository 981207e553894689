// Values that code other than the optimizer writes into parameters: they are kept, as PyTorch keeps them.
//
//   memory::store_written(chunk, shards);  // a gathered chunk that operators wrote to
//   memory::attach_moved(chunk, shards);   // parameters that Tensor::set_data() gave other memory
//   memory::adopt_written(chunk, shards);  // parameters that differ from their master weights
#pragma once
#include <cstdint>
#include <span>

#include "colossal/memory/chunk.h"
#include "colossal/memory/shard.h"

namespace colossal::memory {

// In all functions `shards` are those of `chunk` on this rank, in order. Every rank must write the same values, as in
// data parallel training in general: each rank stores its own part. No function communicates.

/// Makes all parameters views of `chunk` again. A parameter that has other memory keeps its values. Requires that
/// store_written() was called since operators wrote.
/// Memory: none beyond that of the parameter. Errors: see Chunk::attach() and Shard::lease().
void attach_moved(Chunk& chunk, std::span<const Shard> shards);

/// Stores this rank's part of a gathered chunk that may be released, if Chunk::is_written(). With compression of
/// gathers, elements that were not written keep their exact values. Errors: see Shard::lease().
void store_written(Chunk& chunk, std::span<const Shard> shards);

/// Sets master weights to the parameters in which they are not rounded any more: a caller wrote there. Other master
/// weights keep their digits. Requires master weights. Cost: one read of both. Errors: see Shard::lease().
void adopt_written(Chunk& chunk, std::span<const Shard> shards);

/// Returns a number for this rank's part of a permanent chunk, which changes with its values. Cost: one read; from an
/// accelerator a copy to the host.
uint64_t fingerprint_of(const Chunk& chunk);

}  // namespace colossal::memory
