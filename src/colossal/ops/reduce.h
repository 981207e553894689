// Passes over flat buffers that the optimizer needs.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace colossal::ops {

/// Returns the sum of x^2, accumulated in fp64: a 0-dim fp64 tensor on the device of `flat`. The result is the same if
/// the thread count is the same. There is no gradient. Shapes: 1-D contiguous, fp64, fp32, bf16 or fp16.
at::Tensor sum_of_squares(const at::Tensor& flat);
at::Tensor sum_of_squares_reference(const at::Tensor& flat);

/// Returns the norm of each of `parts`, of order 2 or infinity (the largest magnitude). The norms are 0-dim fp64
/// tensors on the device of the parts. Sums are in fp64, and a NaN stays NaN. There is no gradient.
/// Shapes: any, of one dtype and one device. Parts with gaps between their rows are copied.
/// Cost:   on a GPU one pass over all parts together, one launch for some hundred of them, without additional memory
///         (LibTorch's _foreach_norm: PyTorch's aten/src/ATen/native/cuda/ForeachReduceOp.cu).
std::vector<at::Tensor> norms(const std::vector<at::Tensor>& parts, double order);

/// Returns true if norms() takes one pass over all its parts, as on accelerators. Otherwise sum_of_squares() of each
/// part is faster, and its result is reproducible.
bool sums_at_once(const at::Tensor& x);

/// Fills a contiguous tensor with zeros, by all threads.
void zero_(at::Tensor& flat);

}  // namespace colossal::ops
