// A contiguous range of the elements of a local tensor: the shard of one rank when replicas shard states (ZeRO).
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/tensor/shard_spec.h"

namespace at {
class Tensor;
}

namespace colossal::tensor {

/// The range of elements [first, first + size) of a flattened local tensor, whose sizes are ShardSpec::local_shape().
struct FlatPart {
  int64_t first = 0, size = 0;
  /// true on exactly one of the replicas() that hold the same elements: that rank counts and saves them
  bool counts = true;
};

/// Returns the boxes of `part`: the boxes of spec.local_boxes(coordinates), cut at the first and last element of the
/// part. `local_start` is an index into the unsharded local tensor. `primary` is true only if part.counts is, and the
/// spec makes this rank primary along all axes except replicas().
std::vector<LocalBox> local_boxes(const ShardSpec& spec, const MeshCoordinates& coordinates, const FlatPart& part);

/// Returns the elements of `block` as a view of `flat`. `block` is one of local_boxes(). `flat` is 1-D and holds `part`
/// of a local tensor of sizes `local_shape`.
at::Tensor at_local_box(const at::Tensor& flat, const std::vector<int64_t>& local_shape, const FlatPart& part,
                        const LocalBox& block);

}  // namespace colossal::tensor
