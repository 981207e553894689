#include "colossal/ops/huge_pages.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "colossal/base/error.h"

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

at::Tensor lazy_zeros(at::IntArrayRef shape, const at::TensorOptions& options) {
  require(options.device().is_cpu(), "memory", "lazily allocated zeros must be on the CPU: got ",
          options.device().str());
  const size_t bytes = c10::multiply_integers(shape) * options.dtype().itemsize();
  if (bytes == 0) return at::zeros(shape, options);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(memory != MAP_FAILED, "memory", "cannot allocate ", bytes, " bytes: ", std::generic_category().message(errno),
          "; use less memory");
  madvise(memory, bytes, MADV_HUGEPAGE);  // a hint; nothing depends on it
  return at::from_blob(memory, shape, [bytes](void* done) { munmap(done, bytes); }, options);
}

}  // namespace colossal::ops
