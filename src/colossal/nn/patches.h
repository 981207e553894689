// Images as sequences of patches, and the layer that embeds them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/nn/forward_context.h"

namespace colossal::nn {

/// Images [C, height, width] cut into square patches, after `class_tokens` learned tokens (ViT has one, DeiT two,
/// diffusion transformers none).
struct PatchShape {
  int64_t channels, height, width, patch, class_tokens = 1;
  int64_t rows() const { return height / patch; }
  int64_t columns() const { return width / patch; }
  int64_t count() const { return rows() * columns(); }
};

/// Returns the shape whose patches cover pictures of other sides: height and width are rounded up to whole patches.
PatchShape patches_over(PatchShape shape);

/// Returns the patches of images: [B, C, height, width] -> [B, count, C * patch * patch], patches row by row. The
/// elements of a patch are in the order of a convolution's weight [C, patch, patch].
/// Errors ("model"): images of other sizes; a height or width that is not divisible by the patch.
at::Tensor cut_patches(const at::Tensor& images, const PatchShape& shape);

/// Returns images from patches that a model predicts: [B, count, patch * patch * C] -> [B, C, height, width]. The
/// elements of a patch are row by row, and the channels of a pixel are neighbours, as in arXiv:2212.09748. So it is not
/// the inverse of cut_patches(), whose channels are outermost.
/// Errors ("model"): patches of another number or size.
at::Tensor join_patches(const at::Tensor& patches, const PatchShape& shape);

/// Cuts images into patches, projects each patch with a bias, and puts learned class tokens before them. The weight has
/// the shape of a convolution's, [H, C, patch, patch].
class PatchEmbedding {
 public:
  virtual ~PatchEmbedding() = default;
  /// [B, C, height, width] -> [B, class tokens + patches, H].
  virtual at::Tensor forward(const at::Tensor& images, const ForwardContext& step) = 0;
};

}  // namespace colossal::nn
