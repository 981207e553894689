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

/// uint8 [bytes] (a multiple of kBlock) in place of `buffer`, a uint8 tensor of empty_aligned(): in its pages, as far
/// as they reach. What it holds is lost. Undefined where that is not possible: somebody has a view of it, it is small,
/// or pinned, or the system has no memory; then it is as before.
at::Tensor resized_aligned(const at::Tensor& buffer, int64_t bytes);

/// Whether `tensor` is as empty_aligned() makes them.
bool is_aligned(const at::Tensor& tensor);

}  // namespace colossal::memory
