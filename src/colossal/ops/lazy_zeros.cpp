#include "colossal/ops/lazy_zeros.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "colossal/base/error.h"

namespace colossal::ops {

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
