#include "colossal/memory/tiers/loaded_store.h"

#include <ATen/ATen.h>

#include <exception>
#include <optional>
#include <utility>

#include "colossal/memory/tiers/aligned_tensor.h"
#include "colossal/memory/tiers/block_file.h"
#include "colossal/memory/tiers/device_copy.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::memory {
namespace {

/// Number of tensors that are announced ahead in the first pass: the next one, and one that is read after it.
constexpr size_t kPrefetched = 2;

/// A resident tensor in pinned memory, from which an accelerator copies without blocking the host.
struct Pinned final : OffloadedTensor {
  explicit Pinned(const at::Tensor& given) : tensor(given) {}
  ~Pinned() override {
    try {
      copy.wait();
    } catch (...) {  // the device is broken: no copy is running any more
    }
  }
  int64_t bytes() const override { return 0; }
  at::Tensor borrow() override {
    copy.wait();  // the borrower may write to the tensor
    return tensor;
  }
  void return_borrowed(const at::Tensor&, bool) override {}
  void copy_to(const at::Tensor& to) override {
    if (tensor::is_accelerator(to))
      copy.to_device(to, tensor);
    else
      to.copy_(tensor);
  }
  void discard() override {}
  void replace(const at::Tensor& other) override { borrow().copy_(other); }

  at::Tensor tensor;
  DeviceCopy copy{};
};

}  // namespace

/// A stored tensor, without values until it is filled.
struct LoadedStore::Waiting final : OffloadedTensor {
  Waiting(LoadedStore& given, const at::Tensor& tensor, bool travels)
      : store(given), sizes(tensor.sizes().vec()), options(tensor.options()), taken(whole_blocks(tensor.nbytes())) {
    if (!travels) return;
    place = store.travelling_.size();
    store.travelling_.push_back(this);
  }
  ~Waiting() override {
    if (travels()) store.travelling_[*place] = nullptr;
  }

  int64_t bytes() const override { return taken; }
  void prefetch() override {
    if (offloaded) offloaded->prefetch();
  }

  at::Tensor borrow() override {
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
    // Tensors that are not resident need no pinned memory here, because `others` copies them into its own buffers.
    if (!offloaded) return empty_aligned(sizes, options.pinned_memory(is_pinned()));
    at::Tensor borrowed = offloaded->borrow();
    prefetch_others();
    return borrowed;
  }

  void copy_to(const at::Tensor& to) override {
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
    if (!offloaded) return;  // arbitrary values suffice before the tensor is filled
    offloaded->copy_to(to);
    prefetch_others();
  }

  void return_borrowed(const at::Tensor& borrowed, bool changed) override {
    if (offloaded) return offloaded->return_borrowed(borrowed, changed);
    if (!changed) return;  // the borrower did not fill it
    try {
      replace(borrowed);
    } catch (...) {
      failure = std::current_exception();
    }
  }

  void discard() override { offloaded.reset(); }

  void replace(const at::Tensor& tensor) override {
    if (offloaded) return offloaded->replace(tensor);
    if (travels())
      offloaded = store.others_->offload(tensor);
    else if (is_pinned())
      offloaded = std::make_unique<Pinned>(
          tensor.is_pinned() ? tensor : empty_aligned(sizes, options.pinned_memory(true)).copy_(tensor));
    else
      offloaded = InPlace().offload(tensor);
  }

  void prefetch_others() {
    for (size_t i = 1; travels() && i <= kPrefetched && *place + i < store.travelling_.size(); ++i)
      if (Waiting* next = store.travelling_[*place + i]) next->prefetch();
  }

  bool travels() const { return place.has_value(); }
  bool is_pinned() const { return !travels() && tensor::is_accelerator(options.device()); }

  LoadedStore& store;
  std::vector<int64_t> sizes;
  at::TensorOptions options;
  int64_t taken;
  std::optional<size_t> place{};  // index in store.travelling_; none: the tensor is resident
  std::unique_ptr<OffloadedTensor> offloaded{};
  std::exception_ptr failure{};
};

LoadedStore::LoadedStore(std::shared_ptr<OffloadStore> others, const Residence& residence)
    : others_(std::move(others)),
      residence_(residence),
      // EvenShare takes the first tensor, which may be a table that is read first and last in a pass, as with a tied
      // head.
      spread_(residence.stays - residence.above_largest, residence.all - residence.above_largest) {}

std::unique_ptr<OffloadedTensor> LoadedStore::offload(const at::Tensor& tensor) {
  const int64_t bytes = whole_blocks(static_cast<int64_t>(tensor.nbytes()));
  const bool stay = bytes > residence_.largest || spread_.takes(bytes);
  if (stay) stayed_ += bytes;
  return std::make_unique<Waiting>(*this, tensor, !stay);
}

}  // namespace colossal::memory
