// Which tensors are an accelerator's.
//
//   if (tensor::is_elsewhere(x.device())) return by_fused_operators(x);   // else by kernels of ours
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::tensor {

/// True of accelerators, whatever their kind: neither the CPU nor meta, whose tensors have no numbers.
inline bool is_elsewhere(at::Device device) { return !device.is_cpu() && !device.is_meta(); }
inline bool is_elsewhere(const at::Tensor& x) { return is_elsewhere(x.device()); }

}  // namespace colossal::tensor
