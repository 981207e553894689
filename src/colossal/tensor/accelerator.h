// A test for accelerators, which separates them from the CPU and from meta.
//
//   if (tensor::is_accelerator(x.device())) return by_fused_operators(x);   // else by kernels of ours
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::tensor {

/// Returns true for an accelerator of any kind: neither the CPU nor meta, whose tensors have no values.
inline bool is_accelerator(at::Device device) { return !device.is_cpu() && !device.is_meta(); }
inline bool is_accelerator(const at::Tensor& x) { return is_accelerator(x.device()); }

}  // namespace colossal::tensor
