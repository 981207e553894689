#include "colossal/memory/offload_store.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace colossal::memory {
namespace {

struct Here final : Kept {
  explicit Here(const at::Tensor& given) : tensor(given), sizes(given.sizes().vec()), options(given.options()) {}
  int64_t bytes() const override { return 0; }
  at::Tensor bring() override {
    if (!tensor.defined()) tensor = at::empty(sizes, options);
    return tensor;
  }
  void put(const at::Tensor&, bool) override {}
  void forget() override { tensor.reset(); }
  void replace(const at::Tensor& other) override { tensor = other; }
  at::Tensor tensor;
  std::vector<int64_t> sizes;
  at::TensorOptions options;
};

class Elsewhere final : public Kept {
 public:
  Elsewhere(at::Device device, std::shared_ptr<Kept> kept) : device_(device), kept_(std::move(kept)) {}
  int64_t bytes() const override { return kept_->bytes(); }
  void expect() override { kept_->expect(); }
  at::Tensor bring() override {
    there_ = kept_->bring();
    // Pinned, so that changed values are copied back without a wait. LibTorch reuses the memory only after that copy.
    const auto options = there_.options().device(device_).pinned_memory(device_.is_cpu());
    return at::empty_like(there_, options).copy_(there_);
  }
  void put(const at::Tensor& lent, bool changed) override {
    const at::Tensor there = std::exchange(there_, {});
    if (changed) there.copy_(lent, /*non_blocking=*/true);
    kept_->put(there, changed);
  }
  void copy_to(const at::Tensor& to) override { kept_->copy_to(to); }
  void forget() override { kept_->forget(); }
  /// Copies into the existing tensor, because parameters are views of it.
  void replace(const at::Tensor& tensor) override {
    const at::Tensor there = kept_->bring();
    there.copy_(tensor);
    kept_->put(there, true);
  }

 private:
  at::Device device_;
  std::shared_ptr<Kept> kept_;
  at::Tensor there_;
};

}  // namespace

void Kept::copy_to(const at::Tensor& to) {
  const at::Tensor lent = bring();
  try {
    to.copy_(lent);
  } catch (...) {
    put(lent, false);
    throw;
  }
  put(lent, false);
}

std::shared_ptr<Kept> brought_to(at::Device device, std::shared_ptr<Kept> kept) {
  return std::make_shared<Elsewhere>(device, std::move(kept));
}

std::unique_ptr<Kept> InPlace::keep(const at::Tensor& tensor) { return std::make_unique<Here>(tensor); }

}  // namespace colossal::memory
