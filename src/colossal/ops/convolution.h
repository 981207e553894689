// Convolutions of pictures, and their resampling, in channels-last layout. Those of clips are causal
// (ops/causal_convolution.h). These are the two places where the library calls LibTorch's convolution.
//
//   const ops::Window window = ops::Window::same(3);                           // 3 x 3, as large as before
//   const at::Tensor y = ops::convolution(x, weight, bias, window);            // x [B, h, w, in] -> [B, h, w, out]
//   const at::Tensor half = ops::convolution(x, weight, bias, {.stride = 2, .bottom = 1, .right = 1});
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>

namespace colossal::ops {

/// The sides of a picture, in pixels or in cells of a latent.
struct PictureSize {
  int64_t height = 0, width = 0;
  int64_t pixels() const { return height * width; }
  bool operator==(const PictureSize&) const = default;
};

/// How a kernel passes over a picture: its step in both directions, and the rows and columns of zeros around it.
struct Window {
  int64_t stride = 1, top = 0, bottom = 0, left = 0, right = 0;

  /// Returns the window of an odd kernel whose result has the size of its input.
  static Window same(int64_t kernel) { return {1, kernel / 2, kernel / 2, kernel / 2, kernel / 2}; }
  /// Returns the size of the result. Errors ("convolution"): a stride below 1; a kernel that does not fit.
  PictureSize of(const PictureSize& picture, const PictureSize& kernel) const;
};

/// Computes y[b, i, j] = sum over the kernel of x[b, stride i + k - top, stride j + l - left] W[:, :, k, l]t, plus the
/// bias.
///
/// Shapes:   x [B, h, w, in], weight [out, in, kh, kw], bias [out] or undefined -> [B, h', w', out].
/// Gradient: of x, weight and bias. Saved for backward: the weight, and x if the weight trains.
/// Devices:  LibTorch's convolution, on meta sizes alone. Forward and each gradient are announced as one product
///           (tensor/flops.h), whose factor has the inputs of all taps: the bytes follow from its sizes.
/// Copies:   none in channels-last memory, except that uneven padding copies x.
/// Errors ("convolution"): sizes that do not fit.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Window& window);

/// Compute the same without autograd, for functions that communicate in between. `wanted`: the gradients of x, weight
/// and bias; others are returned undefined. The values of x are read only for the gradient of the weight.
at::Tensor convolution_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               const Window& window);
std::array<at::Tensor, 3> convolution_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                               const Window& window, std::array<bool, 3> wanted);

/// Returns the pixels of x [B, h, w, C] that tap (row, column) of a kernel multiplies, [B, h', w', C]: zeros beyond the
/// picture. A convolution is the sum over its taps of products with them.
at::Tensor shifted(const at::Tensor& x, const PictureSize& kernel, int64_t row, int64_t column, const Window& window);

/// Returns the pixels of all taps side by side, [B, h', w', kh kw C], tap after tap, row by row: a convolution is the
/// product of its pixels with the weight in that order. Differentiable.
at::Tensor unfolded(const at::Tensor& x, const PictureSize& kernel, const Window& window);

/// Returns x [B, h, w, C] enlarged to `size` by the nearest pixel. Differentiable.
at::Tensor enlarged(const at::Tensor& x, const PictureSize& size);

}  // namespace colossal::ops
