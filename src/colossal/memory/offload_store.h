// Offload stores: storage for tensors that are not in use, in place, in host memory or on disk.
//
//   class Scratch final : public memory::OffloadStore {   // a file for each tensor
//    public:
//     std::unique_ptr<memory::OffloadedTensor> offload(const at::Tensor& tensor) override {
//       return std::make_unique<ScratchFile>(folder_, tensor);   // an OffloadedTensor: reads, writes, removes its file
//     }
//   };
//   options.offload = std::make_shared<Scratch>("scratch/");   // memory::ChunkOptions: for master weights and states
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace colossal::memory {

/// Handle to one stored tensor. Destroying it frees the tensor's storage, even while the tensor is borrowed; the caller
/// must not use the borrowed tensor afterwards.
///
/// The sizes and dtype never change: they are the ones of the tensor that the handle was made of. A tensor of other
/// sizes or dtype needs a new handle from OffloadStore::offload().
/// Thread safety: one call at a time. Several threads may call handles of one store at once.
class OffloadedTensor {
 public:
  OffloadedTensor() = default;
  virtual ~OffloadedTensor() = default;
  OffloadedTensor(const OffloadedTensor&) = delete;
  OffloadedTensor& operator=(const OffloadedTensor&) = delete;

  /// Returns the bytes of the store's memory that the tensor takes while it is borrowed; 0 if it is stored in place.
  virtual int64_t bytes() const = 0;
  /// Announces that the tensor is borrowed soon, so that the store may start to load it. May be called any number of
  /// times, even if no borrow follows.
  virtual void prefetch() {}
  /// Borrows the tensor: returns it with the values that offload(), replace() or the last return_borrowed() with
  /// `changed` stored. A tensor is borrowed once at a time: return_borrowed() must be called before the next borrow.
  /// After discard() the values are arbitrary; the store keeps them only if return_borrowed() reports a change.
  /// Errors: anything that went wrong with the tensor, here or since the last borrow. The tensor is then not borrowed.
  virtual at::Tensor borrow() = 0;
  /// Ends the borrow of `borrowed`, the tensor that borrow() returned; the caller must not use it afterwards.
  /// `changed`: the values may differ from the borrowed ones. If it is false, the stored values stay valid, and what
  /// was written to the tensor may be lost. Never throws, because borrows end in destructors: the next borrow throws
  /// the error.
  virtual void return_borrowed(const at::Tensor& borrowed, bool changed) = 0;
  /// Copies the values into `to`, a tensor of the same sizes and dtype on any device. It replaces a borrow for one
  /// copy, so the tensor must not be borrowed. If `to` is on an accelerator, the accelerator's current stream makes the
  /// copy. Later operators of that stream see the values, and `to` must live until then. The host does not wait for the
  /// copy if the store can avoid it. Errors: as for a borrow.
  virtual void copy_to(const at::Tensor& to);
  /// Discards the values and ends a borrow; the caller must not use the borrowed tensor afterwards. The store may use
  /// the space for other tensors.
  virtual void discard() = 0;
  /// Stores the values of `tensor`, which has the same sizes and dtype, instead of the current ones. The stored tensor
  /// must not be borrowed. As with OffloadStore::offload(), the caller must not use `tensor` afterwards. Errors: see
  /// OffloadStore::offload().
  virtual void replace(const at::Tensor& tensor) = 0;
};

/// An offload store. It must outlive its handles.
/// Thread safety: several threads may call offload() at once.
class OffloadStore {
 public:
  virtual ~OffloadStore() = default;
  /// Stores the values of `tensor`, which the caller must not use afterwards. Errors: the store cannot keep it,
  /// for example because the disk is full.
  virtual std::unique_ptr<OffloadedTensor> offload(const at::Tensor& tensor) = 0;
  /// Returns the device of borrowed tensors that were stored from `device`. Work on them runs there.
  virtual at::Device borrow_device(at::Device device) const { return device; }
};

/// A store that keeps tensors where they are.
class InPlace final : public OffloadStore {
 public:
  std::unique_ptr<OffloadedTensor> offload(const at::Tensor& tensor) override;
};

/// Returns a handle that provides the tensor of `offloaded`, which is on another device, as a copy on `device`. If the
/// copy was changed, return_borrowed() copies it back. Memory: one copy of the borrowed tensor. Cost: a borrow waits
/// for the other device.
std::shared_ptr<OffloadedTensor> copied_to(at::Device device, std::shared_ptr<OffloadedTensor> offloaded);

}  // namespace colossal::memory
