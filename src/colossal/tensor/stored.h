// A handle to a tensor that is loaded into memory while a caller reads or writes it, and may be stored elsewhere
// otherwise.
//
//   for (const checkpoint::NamedTensor& t : state.tensors) {
//     const tensor::Held held = t.value.read();   // brought, if it was not in memory
//     file.write(held.value);
//   }
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace colossal::tensor {

/// A loaded tensor. It stays in memory as long as this object lives.
struct Held {
  at::Tensor value;
  std::shared_ptr<const void> lease{};  ///< keeps the tensor in memory; null = it is always in memory
  const void* group = nullptr;          ///< the group of the tensor, see Stored; null = none
};

/// A handle to a tensor; copies refer to the same tensor. Dtype, device and sizes are known without loading it.
///
/// Tensors that are loaded together, such as all tensors of one memory::Shard, have the same `group`. A caller that
/// visits many tensors reuses one Held (read_into(), write_into()). Then each group is loaded once if its tensors are
/// visited in sequence, and never two groups at a time.
class Stored {
 public:
  /// Loads the tensor for reading or, if `writes`, for writing; written values are kept in the storage.
  using Open = std::function<Held(bool writes)>;
  Stored(const at::TensorOptions& options, std::vector<int64_t> sizes, Open open, const void* group = nullptr)
      : options_(options), sizes_(std::move(sizes)), open_(std::move(open)), group_(group) {}
  /// A handle to a tensor that is always in memory.
  Stored(const at::Tensor& value)
      : Stored(value.options(), value.sizes().vec(), [value](bool) { return Held{value}; }) {}

  at::ScalarType scalar_type() const { return c10::typeMetaToScalarType(options_.dtype()); }
  at::Device device() const { return options_.device(); }
  at::IntArrayRef sizes() const { return sizes_; }
  int64_t numel() const {
    int64_t product = 1;
    for (const int64_t size : sizes_) product *= size;
    return product;
  }
  int64_t element_size() const { return static_cast<int64_t>(options_.dtype().itemsize()); }
  int64_t nbytes() const { return numel() * element_size(); }

  /// Loads the tensor for reading; writes to it may be lost. Errors: the tensor cannot be loaded.
  Held read() const { return open_(false); }
  /// Loads the tensor for writing; written values are kept. Errors: the tensor cannot be loaded.
  Held write() const { return open_(true); }
  /// Load the tensor into `held`, in place of the tensor that it held. If both are of the same group, the group is not
  /// loaded again; otherwise `held` first releases its own.
  void read_into(Held& held) const { open_into(held, false); }
  void write_into(Held& held) const { open_into(held, true); }
  /// Returns a copy, which the caller owns.
  at::Tensor clone() const { return read().value.clone(); }

 private:
  void open_into(Held& held, bool writes) const {
    if (!group_ || held.group != group_) held = {};
    held = open_(writes);
    held.group = group_;
  }

  at::TensorOptions options_;
  std::vector<int64_t> sizes_;
  Open open_;
  const void* group_ = nullptr;
};

}  // namespace colossal::tensor
