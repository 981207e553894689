// Zeros that take memory and time only when they are first read or written: for large pools of which parts may never be
// used.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Returns a tensor like at::zeros(shape, options) on the CPU. The system zeroes its memory page by page on first
/// access, in huge pages if available. LibTorch's allocator does not own this memory, so its statistics do not include
/// it.
/// Errors ("memory"): the system has too little address space; another device.
at::Tensor lazy_zeros(at::IntArrayRef shape, const at::TensorOptions& options);

}  // namespace colossal::ops
