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

char* resize_host_pages(char* data, size_t bytes, size_t wanted) {
  if (wanted < bytes) unmap_host_pages(data + wanted, bytes - wanted);
  if (wanted <= bytes || mremap(data, bytes, wanted, 0) != MAP_FAILED) return data;
  // Left to itself the system would move them to where huge pages fall apart.
  const size_t whole = (wanted + huge_page() - 1) / huge_page() * huge_page();
  char* to = map_host_pages(whole);
  if (!to) return nullptr;
  if (wanted < whole) unmap_host_pages(to + wanted, whole - wanted);
  // Where this fails the pages at `to` may be gone, and somebody else's be there: they are left alone.
  return mremap(data, bytes, wanted, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED ? nullptr : to;
}

}  // namespace colossal::memory
