// Images as sequences of patches.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::nn {

/// Square images [C, side, side] in square patches, behind `class_tokens` tokens that are learned (DeiT has two).
struct PatchShape {
  int64_t channels, side, patch, class_tokens = 1;
  int64_t count() const { return (side / patch) * (side / patch); }
};

/// [B, C, side, side] -> [B, count, C * patch * patch], patches row by row, each in the order of a convolution's weight
/// [C, patch, patch].
/// Errors: images of other sizes, a side that does not divide by the patch.
at::Tensor cut_patches(const at::Tensor& images, const PatchShape& shape);

}  // namespace colossal::nn
