// Images as sequences of patches, and the layer that embeds them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/nn/forward_context.h"

namespace colossal::nn {

/// Square images [C, side, side] cut into square patches, after `class_tokens` learned tokens (DeiT has two).
struct PatchShape {
  int64_t channels, side, patch, class_tokens = 1;
  int64_t count() const { return (side / patch) * (side / patch); }
};

/// Returns the patches of images: [B, C, side, side] -> [B, count, C * patch * patch], patches row by row. The elements
/// of a patch are in the order of a convolution's weight [C, patch, patch].
/// Errors: images of other sizes; a side that is not divisible by the patch.
at::Tensor cut_patches(const at::Tensor& images, const PatchShape& shape);

/// Cuts images into patches, projects each patch with a bias, and puts learned class tokens before them. The weight has
/// the shape of a convolution's, [H, C, patch, patch].
class PatchEmbedding {
 public:
  virtual ~PatchEmbedding() = default;
  /// [B, C, side, side] -> [B, class tokens + patches, H].
  virtual at::Tensor forward(const at::Tensor& images, const ForwardContext& step) = 0;
};

}  // namespace colossal::nn
