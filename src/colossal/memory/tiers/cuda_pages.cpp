#include <ATen/ATen.h>
#include <cuda_runtime_api.h>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/memory/host_pages.h"

namespace colossal::memory {
namespace {

at::Tensor locked_pages(const at::Tensor& pages) {
  if (pages.numel() == 0) return pages;
  // Portable, because ranks that are threads of one process have devices of their own.
  const cudaError_t failed =
      cudaHostRegister(pages.data_ptr(), static_cast<size_t>(pages.nbytes()), cudaHostRegisterPortable);
  // Clears the error, which the next kernel launch would report otherwise.
  if (failed != cudaSuccess) static_cast<void>(cudaGetLastError());
  require(failed == cudaSuccess, "memory", "cannot lock ", readable_bytes(static_cast<int64_t>(pages.nbytes())),
          " of host memory for copies from and to the GPU: ", cudaGetErrorString(failed),
          "; raise the limit of locked memory (ulimit -l), or lower memory.host");
  // The code that frees the tensor has waited for its copies. At the end of a process CUDA may be gone already, which
  // does no harm.
  return at::from_blob(
      pages.data_ptr(), pages.sizes(), [pages](void* address) { static_cast<void>(cudaHostUnregister(address)); },
      pages.options());
}

}  // namespace

LockPages cuda_pages() { return at::hasCUDA() ? &locked_pages : nullptr; }

}  // namespace colossal::memory
