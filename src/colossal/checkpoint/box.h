// Boxes of index space: the blocks of a sharded tensor, and what two layouts have in common.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace colossal::checkpoint {

/// The indices [start, start + size), dimension by dimension. Without dimensions: the one index of a scalar.
struct Box {
  std::vector<int64_t> start, size;
  int64_t numel() const;
};

/// What both hold; nothing when that is empty. Both must have the same number of dimensions.
std::optional<Box> intersect(const Box& a, const Box& b);

/// The view of `tensor` at `box`, moved by -`origin` (empty: not moved): a block stored at logical `origin` is indexed
/// from there.
at::Tensor at_box(const at::Tensor& tensor, const Box& box, const std::vector<int64_t>& origin = {});

}  // namespace colossal::checkpoint
