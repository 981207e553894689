#include "colossal/memory/movable_store.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

#include "colossal/memory/account.h"

namespace colossal::memory {

/// A stored tensor. It is in `there_`, its handle in the other store, if that is set; otherwise in `here_`.
class MovableStore::Movable final : public OffloadedTensor {
 public:
  Movable(MovableStore& store, const at::Tensor& tensor)
      : store_(store),
        sizes_(tensor.sizes().vec()),
        options_(tensor.options().device(store.device_)),
        size_(static_cast<int64_t>(tensor.nbytes())) {
    if (store.is_on_device())
      hold(tensor.to(store.device_));
    else
      there_ = store.behind_->offload(tensor);
    const std::lock_guard lock(store_.mutex_);
    store_.tensors_.push_back(this);
  }
  ~Movable() override {
    hold({});
    const std::lock_guard lock(store_.mutex_);
    std::erase(store_.tensors_, this);
  }

  int64_t bytes() const override { return there_ ? there_->bytes() : 0; }
  void prefetch() override {
    if (there_) there_->prefetch();
  }
  at::Tensor borrow() override {
    if (there_) return there_->borrow();
    if (!here_.defined()) hold(at::empty(sizes_, options_));
    return here_;
  }
  void return_borrowed(const at::Tensor& borrowed, bool changed) override {
    if (there_) there_->return_borrowed(borrowed, changed);
    has_values_ = has_values_ || changed;
  }
  /// Uses the other store's copy if the tensor is there, because that can copy to an accelerator without a wait.
  void copy_to(const at::Tensor& to) override {
    if (there_) return there_->copy_to(to);
    to.copy_(borrow());
  }
  void discard() override {
    has_values_ = false;
    if (there_)
      there_->discard();
    else
      hold({});
  }
  void replace(const at::Tensor& tensor) override {
    has_values_ = true;
    if (there_)
      there_->replace(tensor);
    else
      hold(tensor.to(store_.device_));
  }

  void move(bool to_device) {
    if (to_device == !there_) return;
    const KindScope kind(Kind::States);
    if (to_device) {
      if (has_values_) {
        const at::Tensor here = at::empty(sizes_, options_);
        there_->copy_to(here);
        hold(here);
      }
      there_.reset();
      return;
    }
    there_ = store_.behind_->offload(has_values_ ? here_ : at::zeros(sizes_, options_));
    if (!has_values_) there_->discard();
    hold({});
  }
  int64_t size() const { return size_; }

 private:
  void hold(const at::Tensor& tensor) {
    *store_.on_device_ += (tensor.defined() ? size_ : 0) - (here_.defined() ? size_ : 0);
    // A slice would keep the memory of the larger tensor alive.
    const bool is_slice = tensor.defined() && tensor.storage().nbytes() > tensor.nbytes();
    here_ = is_slice ? tensor.clone() : tensor;
  }

  MovableStore& store_;
  std::vector<int64_t> sizes_;
  at::TensorOptions options_;  // options of the tensor on the device
  int64_t size_;
  bool has_values_ = true;
  std::unique_ptr<OffloadedTensor> there_;
  at::Tensor here_;
};

MovableStore::MovableStore(std::shared_ptr<OffloadStore> behind, at::Device device,
                           std::shared_ptr<std::atomic<int64_t>> on_device)
    : behind_(std::move(behind)), device_(device), on_device_(std::move(on_device)) {}
MovableStore::~MovableStore() = default;

std::unique_ptr<OffloadedTensor> MovableStore::offload(const at::Tensor& tensor) {
  return std::make_unique<Movable>(*this, tensor);
}

void MovableStore::move(bool to_device) {
  const at::NoGradGuard no_grad;
  std::vector<Movable*> all;
  {
    const std::lock_guard lock(mutex_);
    is_on_device_ = to_device;
    all = tensors_;
  }
  for (Movable* each : all) each->move(to_device);
}

bool MovableStore::is_on_device() const {
  const std::lock_guard lock(mutex_);
  return is_on_device_;
}

int64_t MovableStore::bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const Movable* each : tensors_) bytes += each->size();
  return bytes;
}

}  // namespace colossal::memory
