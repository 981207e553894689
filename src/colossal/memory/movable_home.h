// A home whose tensors lie in another one, or on the device where somebody computes: all of them together.
//
//   auto on_device = std::make_shared<std::atomic<int64_t>>(0);
//   auto home = std::make_shared<memory::MovableHome>(tiers, device, on_device);   // of one chunk
//   auto kept = home->keep(states);                                                // in `tiers`
//   home->move(true);                                                              // here the update finds them now
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "colossal/memory/home.h"

namespace colossal::memory {

/// Memory: on the device what it keeps, but for what is forgotten; else that of `behind`.
/// Cost: an accelerator copies in the order of its current stream, for which the host does not wait where `behind` can
///       do without.
/// Thread safety: that of Home.
class MovableHome final : public Home {
 public:
  /// `device`: where somebody computes. `on_device`: counts the bytes of tensors that are there, also those of other
  /// homes that are given the same.
  MovableHome(std::shared_ptr<Home> behind, at::Device device, std::shared_ptr<std::atomic<int64_t>> on_device);
  ~MovableHome() override;

  /// On the device `tensor` itself is kept, if it lies there.
  std::unique_ptr<Kept> keep(const at::Tensor& tensor) override;
  /// Changes with move().
  at::Device lends_on(at::Device device) const override { return is_on_device() ? device_ : behind_->lends_on(device); }
  /// All that it keeps, which nobody has brought, and what it will be given. Cost: a copy of each. Errors: of
  /// Kept::bring() and Home::keep() behind it; then some lie here and some there, which does no harm.
  void move(bool to_device);
  bool is_on_device() const;
  /// Bytes of all tensors that it keeps, wherever they are; also of those whose values were forgotten.
  int64_t bytes() const;

 private:
  class Movable;
  std::shared_ptr<Home> behind_;
  at::Device device_;
  std::shared_ptr<std::atomic<int64_t>> on_device_;
  mutable std::mutex mutex_;
  std::vector<Movable*> kept_;  // in the order in which it came
  bool is_on_device_ = false;
};

}  // namespace colossal::memory
