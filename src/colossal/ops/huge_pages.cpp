#include "colossal/ops/huge_pages.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <cstdint>

namespace colossal::ops {

at::Tensor empty_in_huge_pages(at::IntArrayRef sizes, at::ScalarType dtype) {
  constexpr int64_t kHuge = int64_t{2} << 20;
  const int64_t numel = c10::multiply_integers(sizes), size = static_cast<int64_t>(c10::elementSize(dtype));
  if (numel * size < kHuge) return at::empty(sizes, dtype);
  // The first huge page starts inside a larger tensor, whose other pages are never written and take no memory.
  const at::Tensor memory = at::empty({numel + kHuge / size}, dtype);
  const auto address = reinterpret_cast<uintptr_t>(memory.data_ptr());
  const auto offset = static_cast<int64_t>((kHuge - address % kHuge) % kHuge);
  const at::Tensor aligned = memory.narrow(0, offset / size, numel).view(sizes);
  madvise(aligned.data_ptr(), numel * size / kHuge * kHuge, MADV_HUGEPAGE);  // a hint; nothing depends on it
  return aligned;
}

}  // namespace colossal::ops
