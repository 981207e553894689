// Zeros that take memory and time only where somebody looks or writes: large pools of which parts may never be used.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// As at::zeros(shape, options), of the CPU, in pages of the system's own that it zeroes one by one when they are first
/// touched; huge ones where it has them. LibTorch's allocator, and whoever counts by it, does not see them.
/// Errors ("memory"): the system has not so much address space; another device.
at::Tensor lazy_zeros(at::IntArrayRef shape, const at::TensorOptions& options);

}  // namespace colossal::ops
