#include "colossal/memory/host_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace colossal::memory {

char* map_host_pages(size_t bytes) {
  // Maps one huge page more than needed and cuts off both ends, so that the rest is aligned.
  void* mapped = mmap(nullptr, bytes + huge_page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<char*>(mapped);
  char* data = begin + (-reinterpret_cast<uintptr_t>(begin) & (huge_page() - 1));
  if (data > begin) munmap(begin, static_cast<size_t>(data - begin));
  munmap(data + bytes, huge_page() - static_cast<size_t>(data - begin));
  madvise(data, bytes, MADV_HUGEPAGE);  // only advice: the memory works in small pages, too
  return data;
}

void unmap_host_pages(char* data, size_t bytes) { munmap(data, bytes); }

char* resize_host_pages(char* data, size_t bytes, size_t wanted) {
  if (wanted < bytes) unmap_host_pages(data + wanted, bytes - wanted);
  if (wanted <= bytes || mremap(data, bytes, wanted, 0) != MAP_FAILED) return data;
  // Chooses the new address here, because the system would choose one at which huge pages are split.
  const size_t whole = (wanted + huge_page() - 1) / huge_page() * huge_page();
  char* to = map_host_pages(whole);
  if (!to) return nullptr;
  if (wanted < whole) unmap_host_pages(to + wanted, whole - wanted);
  // If this call fails, the pages at `to` may be gone and other memory of the process may be there: they are left
  // alone.
  return mremap(data, bytes, wanted, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED ? nullptr : to;
}

}  // namespace colossal::memory
