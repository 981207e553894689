// Host memory directly from the system, in huge pages if it has them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>

namespace colossal::memory {

/// Returns `bytes` (a multiple of huge_page()) of zeros at a multiple of huge_page(); null if the system has no memory.
/// The caller frees them with unmap_host_pages(), at once or in ranges of blocks of 4 KiB. Cost: the system fills a
/// page when it is first written to.
char* map_host_pages(size_t bytes);
void unmap_host_pages(char* data, size_t bytes);

/// Resizes the memory at `data` from `bytes` to `wanted`, both multiples of 4 KiB, and returns its address. Pages that
/// both sizes include stay the same, perhaps at another address. Further pages are given back, or are new zeros.
/// Returns null if the system has no memory; `data` is then unchanged. Cost: a few system calls; new memory would have
/// to be filled with zeros.
char* resize_host_pages(char* data, size_t bytes, size_t wanted);

constexpr size_t huge_page() { return size_t{2} << 20; }

// Page-locked host memory, from and to which CUDA devices copy without blocking the host. tiers/cuda_pages.cpp is
// compiled if the headers of CUDA were found, else tiers/no_cuda_pages.cpp.

/// Function that returns another tensor with the memory of `pages`, a tensor of bytes of complete host pages. The pages
/// are locked while that tensor exists. Errors ("memory"): the system cannot lock more (ulimit -l, or a container's
/// limit).
using LockPages = at::Tensor (*)(const at::Tensor& pages);

/// Returns the function, or null if this build or this machine has no CUDA.
LockPages cuda_pages();

}  // namespace colossal::memory
