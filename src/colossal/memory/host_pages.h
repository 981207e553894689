// Memory of the host straight from the system, in huge pages where it has them.
#pragma once
#include <cstddef>

namespace colossal::memory {

/// `bytes` (a multiple of huge_page()) of zeros at a multiple of huge_page(); null if there is no memory. To be given
/// back whole to unmap_host_pages(). Cost: a page is filled when it is first written to.
char* map_host_pages(size_t bytes);
void unmap_host_pages(char* data, size_t bytes);

constexpr size_t huge_page() { return size_t{2} << 20; }

}  // namespace colossal::memory
