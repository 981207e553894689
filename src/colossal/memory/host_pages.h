// Host memory directly from the system, in huge pages if it has them.
#pragma once
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

}  // namespace colossal::memory
