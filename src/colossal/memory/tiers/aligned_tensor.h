// Tensors that a disk reads and writes where they are.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::memory {

/// An uninitialised contiguous tensor of the host that begins at a multiple of kBlock and whose storage goes on to the
/// next one behind its end. `options`: its dtype, and whether its memory is pinned (page-locked) for the accelerator of
/// this process, which then copies from and to it while the host goes on.
/// Memory: of the system where it is large, of LibTorch's allocator where it is small, and two blocks more than the
///         tensor needs at most. Pinned for a device other than CUDA's, whatever the allocator of that device rounds it
///         to. Errors ("memory"): the system has none, or locks no more.
at::Tensor empty_aligned(at::IntArrayRef sizes, const at::TensorOptions& options);

/// Whether `tensor` is as empty_aligned() makes them.
bool is_aligned(const at::Tensor& tensor);

}  // namespace colossal::memory
