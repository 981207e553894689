// A tensor that is in memory while somebody reads or writes it, wherever it lies between.
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

/// A tensor that is in memory as long as this lives.
struct Held {
  at::Tensor value;
  std::shared_ptr<const void> lease{};  ///< what keeps it there; null: it stays there anyway
  const void* group = nullptr;          ///< see Stored
};

/// A handle: copies are the same tensor. Dtype, device and sizes are known without it.
///
/// Tensors that are brought together, those of one memory::Shard, are of one `group`. Who goes through many has one
/// Held become the next: then a group is brought once, if its tensors follow one another, and never two at a time.
class Stored {
 public:
  /// Brings the tensor, to be read or (`writes`) written to, and what is written stays with it.
  using Open = std::function<Held(bool writes)>;
  Stored(const at::TensorOptions& options, std::vector<int64_t> sizes, Open open, const void* group = nullptr)
      : options_(options), sizes_(std::move(sizes)), open_(std::move(open)), group_(group) {}
  /// One that is in memory.
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

  /// What is written to it may be lost. Errors: it cannot be brought.
  Held read() const { return open_(false); }
  Held write() const { return open_(true); }
  /// `held` becomes this one.
  void read_into(Held& held) const { open_into(held, false); }
  void write_into(Held& held) const { open_into(held, true); }
  /// A copy, which the caller has.
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
