// Passes over flat buffers that the optimizer needs.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace colossal::ops {

/// Sum of x^2, accumulated in fp64: 0-dim fp64 tensor on the device of `flat`. Shapes: 1-D contiguous, fp64, fp32, bf16
/// or fp16. The same value whenever the thread count is the same. Not differentiable.
at::Tensor sum_of_squares(const at::Tensor& flat);
at::Tensor sum_of_squares_reference(const at::Tensor& flat);

/// Returns the norm of each of `parts`, of order 2, or of order infinity: the largest magnitude. The norms are 0-dim
/// fp64 tensors on the device of the parts. Sums are in fp64, and a NaN stays NaN. Not differentiable.
/// Shapes: any, of one dtype and one device. Parts with gaps between their rows are copied.
/// Cost:   on a GPU one pass over all parts together, one launch for some hundred of them, without additional memory
///         (LibTorch's _foreach_norm: PyTorch's aten/src/ATen/native/cuda/ForeachReduceOp.cu).
std::vector<at::Tensor> norms(const std::vector<at::Tensor>& parts, double order);

/// Whether norms() of many parts is one pass over all of them, as on accelerators; else sum_of_squares() of each is
/// faster, and always the same.
bool sums_at_once(const at::Tensor& x);

/// Fills with zeros, all threads. Shapes: contiguous.
void zero_(at::Tensor& flat);

}  // namespace colossal::ops
