// Passes over flat buffers that the optimizer needs.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Sum of x^2, accumulated in fp64: 0-dim fp64 tensor on the device of `flat`. Shapes: 1-D contiguous, fp64, fp32, bf16
/// or fp16. The same value whenever the thread count is the same. Not differentiable.
at::Tensor sum_of_squares(const at::Tensor& flat);
at::Tensor sum_of_squares_reference(const at::Tensor& flat);

/// Fills with zeros, all threads. Shapes: contiguous.
void zero_(at::Tensor& flat);

}  // namespace colossal::ops
