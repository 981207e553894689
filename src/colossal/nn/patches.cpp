#include "colossal/nn/patches.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"

namespace colossal::nn {

at::Tensor cut_patches(const at::Tensor& images, const PatchShape& s) {
  require(s.patch > 0 && s.side % s.patch == 0, "model",
          "the side of an image must be divisible by the patch: got side ", s.side, ", patch ", s.patch);
  require(images.dim() == 4 && images.size(1) == s.channels && images.size(2) == s.side && images.size(3) == s.side,
          "model", "images must be [B, ", s.channels, ", ", s.side, ", ", s.side, "]: got ", images.sizes());
  const int64_t grid = s.side / s.patch;
  return images.view({images.size(0), s.channels, grid, s.patch, grid, s.patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({images.size(0), s.count(), s.channels * s.patch * s.patch});
}

}  // namespace colossal::nn
