#include "colossal/memory/tiers/aligned_tensor.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/memory/account.h"
#include "colossal/memory/host_pages.h"
#include "colossal/memory/tiers/block_file.h"

namespace colossal::memory {
namespace {

constexpr int64_t kMapped = int64_t{1} << 20;  // tensors of at least this many bytes get a mapping of their own

/// Returns the bytes from the tensor's start to the next multiple of kBlock.
int64_t bytes_to_block(const at::Tensor& tensor) {
  return -static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.const_data_ptr())) & (kBlock - 1);
}

struct Mapping {
  char* data;
  size_t bytes;
};

void end_mapping(void* given) {
  const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(given));
  end_block(mapping->data);
  unmap_host_pages(mapping->data, mapping->bytes);
}

/// Returns uint8 [mapping.bytes], whose storage owns the mapping.
at::Tensor tensor_of(std::unique_ptr<Mapping> mapping) {
  const size_t bytes = mapping->bytes;
  count_block(mapping->data, static_cast<int64_t>(bytes));
  at::DataPtr data(mapping->data, mapping.get(), &end_mapping, at::kCPU);
  mapping.release();
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data));
  return at::empty({0}, at::kByte).set_(storage, 0, {static_cast<int64_t>(bytes)});
}

/// Returns uint8 [bytes] in a mapping of its own.
at::Tensor mapped(int64_t bytes) {
  const auto size = (static_cast<size_t>(bytes) + huge_page() - 1) / huge_page() * huge_page();
  char* data = map_host_pages(size);
  require(data != nullptr, "memory", "the system cannot provide ", readable_bytes(bytes),
          " for a buffer in host memory; lower memory.host, or raise the memory limit of the process");
  // The end is unmapped, because the system would otherwise provide all of the last huge page and no budget counts the
  // remainder.
  const auto used = static_cast<size_t>(whole_blocks(bytes));
  if (used < size) unmap_host_pages(data + used, size - used);
  return tensor_of(std::make_unique<Mapping>(data, used));
}

void end_allocation(void* data) {
  end_block(data);
  std::free(data);
}

/// Returns uint8 [bytes] at a multiple of kBlock, for a few bytes.
at::Tensor allocated(int64_t bytes) {
  void* data = std::aligned_alloc(kBlock, static_cast<size_t>(bytes));
  require(data != nullptr, "memory", "the system cannot provide ", readable_bytes(bytes),
          " for a buffer in host memory; lower memory.host, or raise the memory limit of the process");
  count_block(data, bytes);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                             at::DataPtr(data, data, &end_allocation, at::kCPU));
  return at::empty({0}, at::kByte).set_(storage, 0, {bytes});
}

}  // namespace

at::Tensor empty_aligned(at::IntArrayRef sizes, const at::TensorOptions& options) {
  // Autograd would keep the tensor that the result is a view of.
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  const int64_t numel = c10::multiply_integers(sizes),
                wanted = whole_blocks(numel * static_cast<int64_t>(c10::elementSize(type)));
  if (options.device().is_meta())
    return at::empty({wanted}, options.dtype(at::kByte).pinned_memory(false))
        .view(type)
        .narrow(0, 0, numel)
        .view(sizes);
  const auto bytes_options = options.device(at::kCPU).dtype(at::kByte);
  if (options.pinned_memory()) {
    // The pages are locked here, because LibTorch's allocator of pinned memory for CUDA rounds to powers of two: up to
    // twice the budget.
    if (const LockPages lock = cuda_pages()) {
      const at::Tensor pages = empty_aligned({wanted}, bytes_options.pinned_memory(false));
      return lock(pages).view(type).narrow(0, 0, numel).view(sizes);
    }
  }
  // Large tensors live long. Among the activations they would leave holes in the memory that LibTorch's allocator
  // keeps. That allocator does not give multiples of kBlock, so small tensors do not come from it either.
  if (!options.pinned_memory() && wanted > 0)
    return (wanted >= kMapped ? mapped(wanted) : allocated(wanted)).view(type).narrow(0, 0, numel).view(sizes);
  at::Tensor bytes = at::empty({wanted}, bytes_options);
  if (bytes_to_block(bytes) != 0) {
    bytes = at::empty({wanted + kBlock}, bytes_options);
    bytes = bytes.narrow(0, bytes_to_block(bytes), wanted);
  }
  return bytes.view(type).narrow(0, 0, numel).view(sizes);
}

at::Tensor resized_aligned(const at::Tensor& buffer, int64_t bytes) {
  if (buffer.is_meta()) {  // under the same conditions; accounts count the old pages no more
    if (buffer.storage().use_count() > 1 || std::min(bytes, buffer.numel()) < kMapped) return {};
    buffer.storage().set_data_ptr_noswap({nullptr, buffer.device()});
    return at::empty({bytes}, buffer.options());
  }
  const c10::Storage& storage = buffer.storage();
  if (storage.use_count() > 1) return {};
  auto* mapping = storage.data_ptr().cast_context<Mapping>(&end_mapping);
  if (!mapping || bytes < kMapped) return {};
  const char* before = mapping->data;
  char* data = resize_host_pages(mapping->data, mapping->bytes, static_cast<size_t>(bytes));
  if (!data) return {};
  end_block(before);
  mapping->data = data, mapping->bytes = static_cast<size_t>(bytes);
  at::DataPtr moved = storage.set_data_ptr({});
  moved.release_context();
  storage.set_nbytes(0);
  return tensor_of(std::unique_ptr<Mapping>(mapping));
}

bool is_aligned(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_contiguous()) return false;
  if (!tensor.is_meta() && (!tensor.is_cpu() || bytes_to_block(tensor) != 0)) return false;
  const auto begin = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  return begin + whole_blocks(static_cast<int64_t>(tensor.nbytes())) <= static_cast<int64_t>(tensor.storage().nbytes());
}

}  // namespace colossal::memory
