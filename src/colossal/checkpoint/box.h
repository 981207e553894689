// Boxes in index space: the blocks of a sharded tensor, and the intersections of blocks of two layouts.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace colossal::checkpoint {

/// The indices [start, start + size) in each dimension. A box without dimensions is the single index of a scalar.
struct Box {
  std::vector<int64_t> start, size;
  int64_t numel() const;
};

/// Returns the intersection of two boxes; none = it is empty. Both must have the same number of dimensions.
std::optional<Box> intersect(const Box& a, const Box& b);

/// Returns the view of `tensor` at `box`, shifted by -`origin` (empty = not shifted): a block stored at logical
/// `origin` has its first element there.
at::Tensor at_box(const at::Tensor& tensor, const Box& box, const std::vector<int64_t>& origin = {});

}  // namespace colossal::checkpoint
