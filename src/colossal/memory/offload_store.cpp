#include "colossal/memory/offload_store.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace colossal::memory {
namespace {

struct Here final : OffloadedTensor {
  explicit Here(const at::Tensor& given) : tensor(given), sizes(given.sizes().vec()), options(given.options()) {}
  int64_t bytes() const override { return 0; }
  at::Tensor borrow() override {
    if (!tensor.defined()) tensor = at::empty(sizes, options);
    return tensor;
  }
  void return_borrowed(const at::Tensor&, bool) override {}
  void discard() override { tensor.reset(); }
  void replace(const at::Tensor& other) override { tensor = other; }
  at::Tensor tensor;
  std::vector<int64_t> sizes;
  at::TensorOptions options;
};

class CopyOnDevice final : public OffloadedTensor {
 public:
  CopyOnDevice(at::Device device, std::shared_ptr<OffloadedTensor> offloaded)
      : device_(device), offloaded_(std::move(offloaded)) {}
  int64_t bytes() const override { return offloaded_->bytes(); }
  void prefetch() override { offloaded_->prefetch(); }
  at::Tensor borrow() override {
    there_ = offloaded_->borrow();
    // Pinned, so that changed values are copied back without a wait. LibTorch reuses the memory only after that copy.
    const auto options = there_.options().device(device_).pinned_memory(device_.is_cpu());
    return at::empty_like(there_, options).copy_(there_);
  }
  void return_borrowed(const at::Tensor& borrowed, bool changed) override {
    const at::Tensor there = std::exchange(there_, {});
    if (changed) there.copy_(borrowed, /*non_blocking=*/true);
    offloaded_->return_borrowed(there, changed);
  }
  void copy_to(const at::Tensor& to) override { offloaded_->copy_to(to); }
  void discard() override { offloaded_->discard(); }
  /// Copies into the existing tensor, because parameters are views of it.
  void replace(const at::Tensor& tensor) override {
    const at::Tensor there = offloaded_->borrow();
    there.copy_(tensor);
    offloaded_->return_borrowed(there, true);
  }

 private:
  at::Device device_;
  std::shared_ptr<OffloadedTensor> offloaded_;
  at::Tensor there_;
};

}  // namespace

void OffloadedTensor::copy_to(const at::Tensor& to) {
  const at::Tensor borrowed = borrow();
  try {
    to.copy_(borrowed);
  } catch (...) {
    return_borrowed(borrowed, false);
    throw;
  }
  return_borrowed(borrowed, false);
}

std::shared_ptr<OffloadedTensor> copied_to(at::Device device, std::shared_ptr<OffloadedTensor> offloaded) {
  return std::make_shared<CopyOnDevice>(device, std::move(offloaded));
}

std::unique_ptr<OffloadedTensor> InPlace::offload(const at::Tensor& tensor) { return std::make_unique<Here>(tensor); }

}  // namespace colossal::memory
