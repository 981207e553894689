// Layers of clips: hidden states [B, frames, pixels, features], the pixels of a frame row by row.
//
//   const auto conv = layers.causal_convolution("conv_in", 3, 64, {.replicates = true});   // 3 x 3 x 3
//   const auto norm = layers.clip_norm("norm", 64, {.groups = 32, .epsilon = 1e-6});
//   y = norm->forward(conv->forward(x, {32, 48}, step), step);                             // x [B, 5, 32 * 48, 3]
//
// With a nn::ClipPass in the step (nn/clip_memory.h) they read a clip chunk by chunk, and large frames by bands of
// rows. Every rank has whole clips and all features; parameters are vectors of their outputs.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "colossal/nn/forward_context.h"
#include "colossal/ops/convolution.h"

namespace colossal::nn {

/// Options of a causal convolution. The kernel passes over a clip as ops::CausalWindow says.
struct CausalOptions {
  std::array<int64_t, 3> kernel{3, 3, 3};  ///< frames, rows, columns
  int64_t frame_stride = 1, stride = 1;
  int64_t front = -1;       ///< frames before the first one; -1 = one less than the kernel has
  bool replicates = false;  ///< true = what surrounds the clip repeats its edges; false = zeros
  bool bias = true;
  double deviation = 0.02;  ///< standard deviation of the initial weight
  bool is_exact = false;    ///< true = in fp32 at least, whatever the dtype of the weight
};

/// A convolution of clips that is causal in time, with the parameters `name`.weight [out, in, frames, rows, columns]
/// and `name`.bias [out].
class ClipConvolution {
 public:
  virtual ~ClipConvolution() = default;
  /// Takes x [B, T, pixels, in], whose frames have that size, and returns [B, T', pixels', out].
  virtual at::Tensor forward(const at::Tensor& x, const ops::PictureSize& size, const ForwardContext& step) = 0;
};

/// A GroupNorm over all frames and pixels of a clip.
class ClipNorm {
 public:
  virtual ~ClipNorm() = default;
  virtual at::Tensor forward(const at::Tensor& x /*[B, T, pixels, features]*/, const ForwardContext& step) = 0;
};

}  // namespace colossal::nn
