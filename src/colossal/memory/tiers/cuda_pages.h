// Host memory that CUDA devices copy from and to while the host goes on: cuda_pages.cpp where the headers of CUDA were
// found, else no_cuda_pages.cpp.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::memory {

/// The memory of `pages`, a tensor of bytes of whole pages of the host, under another tensor: page-locked as long as
/// that one lives. Errors ("memory"): the system locks no more (ulimit -l, or a container's limit).
using LockPages = at::Tensor (*)(const at::Tensor& pages);

/// Null: this build, or this machine, has no CUDA.
LockPages cuda_pages();

}  // namespace colossal::memory
