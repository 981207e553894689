// Memory of the host straight from the system, in huge pages where it has them.
#pragma once
#include <cstddef>

namespace colossal::memory {

/// `bytes` (a multiple of huge_page()) of zeros at a multiple of huge_page(); null if there is no memory. To be given
/// back to unmap_host_pages(), at once or in runs of blocks of 4 KiB. Cost: a page is filled when it is first written
/// to.
char* map_host_pages(size_t bytes);
void unmap_host_pages(char* data, size_t bytes);

/// Memory of `wanted` bytes in place of the `bytes` at `data`, both multiples of 4 KiB: those that both have are the
/// same pages, perhaps elsewhere, others are given back or zeros. Null if there is no memory: then `data` is as before.
/// Cost: a few system calls, where new memory would be filled with zeros.
char* resize_host_pages(char* data, size_t bytes, size_t wanted);

constexpr size_t huge_page() { return size_t{2} << 20; }

}  // namespace colossal::memory
