// Tensors that a disk can read and write in place.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::memory {

/// Returns an uninitialised contiguous host tensor that starts at a multiple of kBlock. Its storage extends to the next
/// multiple after its end. `options`: its dtype, and whether its memory is pinned (page-locked) for the accelerator of
/// this process, so that copies overlap with other work of the host. With the device meta, the tensor has no memory and
/// the same bytes.
///
/// Memory:            from the system if the tensor is large (at least 1 MiB), else from the C library; at most a block
///                    more than the tensor needs, and for pinned memory two. Pinned memory for a device other than
///                    CUDA's has the size to which the allocator of that device rounds.
/// Accounts:          memory::Account counts the bytes of the tensor in whole blocks; the same on meta.
/// Errors ("memory"): the system has no memory, or cannot lock more.
at::Tensor empty_aligned(at::IntArrayRef sizes, const at::TensorOptions& options);

/// Returns uint8 [bytes] (a multiple of kBlock) in the pages of `buffer`, a uint8 tensor of empty_aligned(), as far as
/// they reach. The values are lost. Returns an undefined tensor, and leaves `buffer` unchanged, in these cases: another
/// tensor shares its storage, it is pinned, it or `bytes` is small (under 1 MiB), the system has no memory.
at::Tensor resized_aligned(const at::Tensor& buffer, int64_t bytes);

/// Returns whether `tensor` has the layout that empty_aligned() makes.
bool is_aligned(const at::Tensor& tensor);

}  // namespace colossal::memory
