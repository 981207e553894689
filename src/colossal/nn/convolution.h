// Convolutions of hidden states whose tokens are the pixels of pictures, row by row, for any product of a layout.
//
//   const auto up = layers.expand("blocks.0.conv_1", 64, 128, {.taps = {3, 3}});
//   const auto down = layers.contract("blocks.0.conv_2", 128, 64, {.taps = {3, 3}});
//   const nn::Pictures pictures{{32, 48}, ops::Window::same(3)};
//   y = down->forward(up->forward(x, pictures).map(at::silu, step), pictures);          // x [B, 32 * 48, 64]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/nn/product.h"
#include "colossal/nn/recompute.h"
#include "colossal/ops/convolution.h"

namespace colossal::nn {

/// The pictures that a convolution reads, and how its kernel passes over them.
struct Pictures {
  ops::PictureSize size{};
  ops::Window window{};
};

/// Returns x [B, pixels, F] as pictures [B, height, width, F], a view. Errors ("model"): another number of pixels.
at::Tensor as_pictures(const at::Tensor& x, const ops::PictureSize& size);
/// Returns pictures [B, height, width, F] as hidden states [B, pixels, F].
at::Tensor as_pixels(const at::Tensor& pictures);

/// Returns the convolution of x [B, h * w, in] with a rank's block of a weight [out, in, kh, kw], [B', h' * w', out].
/// A product that multiplies only this rank's blocks (nn::DirectProduct) becomes one convolution, and communicates as
/// its linear layer does. Another one multiplies the taps of each pixel, side by side, and communicates as a linear
/// layer of kh * kw * in inputs.
/// With an adapter of the convolution (nn/low_rank_convolution.h) s B (A * x) is added to this rank's part.
/// Gradient: of x, weight and bias, and of the matrices of an adapter. Saved for backward: the weight, and x if the
/// weight
///           or the adapter trains.
/// `before`:  if given, the convolution reads before(x), which is not kept but computed again in backward, as in
///            nn::linear. It must keep the sizes of x.
/// Lifetime: `product` must outlive the graph.
/// Errors ("model"): a weight of other dimensions; pictures of another number of pixels.
at::Tensor convolved(const Product& product, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     int64_t out, const Pictures& pictures, const Unary& before = {});

/// Returns the convolution of one process.
at::Tensor convolved(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Pictures& pictures);

/// A convolution that reads pictures of a batch and makes hidden states of them, such as the first layer of a model.
/// Its weight [H, C, kernel, kernel] and its bias [H] are vectors of the features between blocks.
class PictureEmbedding {
 public:
  virtual ~PictureEmbedding() = default;
  /// Takes this rank's rows of a field, [B, C, height, width], and returns its part of [B, h' * w', H].
  virtual at::Tensor forward(const at::Tensor& rows, const ops::Window& window) = 0;
};

}  // namespace colossal::nn
