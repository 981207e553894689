// Convolutions of few pixels with a large weight, as products of matrices.
//
//   if (ops::are_few_pixels(weight, size)) y = ops::convolution_of_few_pixels(x, weight, bias, window);
//
// LibTorch's convolution lays the whole weight out anew in every call. At 8 x 8 pixels and 1280 channels that takes
// three times as long as the sums. A product with the pixels of all taps, in the order of the weight, reads the weight
// once, where it is.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/convolution.h"

namespace colossal::ops {

/// Returns true if a convolution on the CPU should be such a product: by the size of the weight and of one result, not
/// by the number of pictures.
bool are_few_pixels(const at::Tensor& weight, const PictureSize& result);

/// Computes convolution_forward(). Memory: the pixels of all taps, kh kw times those of x.
at::Tensor convolution_of_few_pixels(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                     const Window& window);
/// Returns the gradient of x [B, h, w, in], for its sizes, and of the weight.
at::Tensor pixel_gradient(const at::Tensor& dy, at::IntArrayRef sizes, const at::Tensor& weight, const Window& window);
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const Window& window);

}  // namespace colossal::ops
