// A run of the elements of a local tensor: what a rank keeps of it where the replicas of a model share its states out
// (ZeRO).
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/tensor/shard_spec.h"

namespace at {
class Tensor;
}

namespace colossal::tensor {

/// Elements [first, first + size) of ShardSpec::local_shape(), flattened.
struct FlatPart {
  int64_t first = 0, size = 0;
  /// Exactly one of the replicas() that hold the same elements has this set: it counts and saves them
  bool counts = true;
};

/// The boxes of `part`: those of spec.blocks(place), cut where the part begins and ends. `local_start` is an index of
/// the whole local tensor. `primary` follows from part.counts and, along all axes but replicas(), from the spec.
std::vector<Block> blocks(const ShardSpec& spec, const Place& place, const FlatPart& part);

/// The elements of `block`, one of blocks(), as a view of `flat`, 1-D, which holds `part` of a local tensor of
/// `local_shape`.
at::Tensor at_block(const at::Tensor& flat, const std::vector<int64_t>& local_shape, const FlatPart& part,
                    const Block& block);

}  // namespace colossal::tensor
