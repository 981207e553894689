// An offload store that moves all of its tensors together between another store and the device that computes.
//
//   auto on_device = std::make_shared<std::atomic<int64_t>>(0);
//   auto store = std::make_shared<memory::MovableStore>(tiers, device, on_device);   // of one chunk
//   auto offloaded = store->offload(states);                                         // in `tiers`
//   store->move(true);                                                               // here the update finds them now
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "colossal/memory/offload_store.h"

namespace colossal::memory {

/// A store on top of another one. Its tensors are either all in the other store or all on the device.
///
/// Memory:        on the device the bytes of all stored tensors, except those whose values were discarded; else the
///                memory of the other store.
/// Cost:          an accelerator copies in the order of its current stream. The host does not wait for it if the other
///                store can avoid that.
/// Thread safety: as OffloadStore.
class MovableStore final : public OffloadStore {
 public:
  /// `behind`: stores the tensors that are not on the device. `device`: computes with the tensors. `on_device`: counter
  /// of the bytes of tensors on the device; several stores may share one counter.
  MovableStore(std::shared_ptr<OffloadStore> behind, at::Device device,
               std::shared_ptr<std::atomic<int64_t>> on_device);
  ~MovableStore() override;

  /// Stores `tensor`. If the store is on the device and `tensor` is there too, it keeps `tensor` itself, without a
  /// copy. A slice of a larger tensor is copied.
  std::unique_ptr<OffloadedTensor> offload(const at::Tensor& tensor) override;
  /// Returns a device that changes with move().
  at::Device borrow_device(at::Device device) const override {
    return is_on_device() ? device_ : behind_->borrow_device(device);
  }
  /// Moves all stored tensors, none of which may be borrowed, and stores later ones in the new place. Cost: a copy of
  /// each. Errors: see OffloadStore::offload() and OffloadedTensor::copy_to() of the other store. After an error some
  /// tensors have moved and others have not; all of them remain usable.
  void move(bool to_device);
  bool is_on_device() const;
  /// Returns the bytes of all stored tensors, wherever they are, including those whose values were discarded.
  int64_t bytes() const;

 private:
  class Movable;
  std::shared_ptr<OffloadStore> behind_;
  at::Device device_;
  std::shared_ptr<std::atomic<int64_t>> on_device_;
  mutable std::mutex mutex_;
  std::vector<Movable*> tensors_;  // stored tensors in the order of offload()
  bool is_on_device_ = false;
};

}  // namespace colossal::memory
