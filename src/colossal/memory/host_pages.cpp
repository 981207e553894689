#include "colossal/memory/host_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace colossal::memory {

char* map_host_pages(size_t bytes) {
  // With one page more, of which the ends are cut off.
  void* mapped = mmap(nullptr, bytes + huge_page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<char*>(mapped);
  char* data = begin + (-reinterpret_cast<uintptr_t>(begin) & (huge_page() - 1));
  if (data > begin) munmap(begin, static_cast<size_t>(data - begin));
  munmap(data + bytes, huge_page() - static_cast<size_t>(data - begin));
  madvise(data, bytes, MADV_HUGEPAGE);  // a wish: without it the memory works as well, in small pages
  return data;
}

void unmap_host_pages(char* data, size_t bytes) { munmap(data, bytes); }

}  // namespace colossal::memory
