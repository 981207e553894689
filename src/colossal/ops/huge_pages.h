// Memory on the CPU in huge pages.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// For weights that are read from beginning to end: reading them in small pages costs a TLB miss for each, and writing
/// them for the first time a page fault for each.
/// Returns a new tensor on the CPU without values, in huge pages if the system has them and the tensor fills one. The
/// rest of its last huge page is in small pages. The memory is 64-byte aligned.
at::Tensor empty_in_huge_pages(at::IntArrayRef sizes, at::ScalarType dtype);

/// For large pools of which parts may never be used: zeros that take memory and time only when they are first read or
/// written.
/// Returns a tensor like at::zeros(shape, options) on the CPU. The system zeroes its memory page by page on first
/// access, in huge pages if available. LibTorch's allocator does not own this memory, so its statistics do not include
/// it.
/// Errors ("memory"): the system has too little address space; another device.
at::Tensor lazy_zeros(at::IntArrayRef shape, const at::TensorOptions& options);

}  // namespace colossal::ops
