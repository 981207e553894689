// Page-locked host memory, from and to which CUDA devices copy without blocking the host. cuda_pages.cpp is compiled if
// the headers of CUDA were found, else no_cuda_pages.cpp.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::memory {

/// Function that returns another tensor with the memory of `pages`, a tensor of bytes of complete host pages. The pages
/// are locked while that tensor exists. Errors ("memory"): the system cannot lock more (ulimit -l, or a container's
/// limit).
using LockPages = at::Tensor (*)(const at::Tensor& pages);

/// Returns the function, or null if this build or this machine has no CUDA.
LockPages cuda_pages();

}  // namespace colossal::memory
