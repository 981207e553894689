// Where tensors lie while nobody works with them: in the memory of somebody else, or in no memory at all.
//
//   class Scratch final : public memory::Home {   // a file for each tensor
//    public:
//     std::unique_ptr<memory::Kept> keep(const at::Tensor& tensor) override {
//       return std::make_unique<ScratchFile>(folder_, tensor);   // a memory::Kept: reads, writes, and removes its file
//     }
//   };
//   options.home = std::make_shared<Scratch>("scratch/");   // memory::ChunkOptions: masters and states go there
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace colossal::memory {

/// One tensor that a home has. It lives as long as somebody may want the tensor again: its destructor frees the place
/// that it takes, also while the tensor is brought, in which case nobody reads what was lent any more.
///
/// Its sizes and dtype are always those of the tensor that it was made of: one of others is given to Home::keep().
/// Thread safety: one call at a time. Those of one home may be called by several threads at once.
class Kept {
 public:
  Kept() = default;
  virtual ~Kept() = default;
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  /// That it takes of its home's memory while it is brought: nothing, where it stays in place.
  virtual int64_t bytes() const = 0;
  /// It will be wanted soon: it may begin to come. Called any number of times, and sometimes in vain.
  virtual void expect() {}
  /// The tensor to work with, of the values that keep(), replace() or the last put() with changes was given. It is
  /// brought once at a time: the next bring() comes behind a put(). Behind forget(): a tensor of any values, which are
  /// kept if put() says that they are others.
  /// Errors: whatever went wrong with it, here or since the last bring(); then it is not brought.
  virtual at::Tensor bring() = 0;
  /// The work is over and nobody reads `lent`, which bring() returned, any more. `changed`: it may hold other values
  /// than before. Otherwise what is kept is still good, and what was written to `lent` nevertheless is lost.
  /// Errors must not leave it, since work ends in destructors: the next bring() throws them.
  virtual void put(const at::Tensor& lent, bool changed) = 0;
  /// Copies the values into `to`, of any device and of their size and dtype, as a copy between bring() and put() would.
  /// A device's copy is made by the stream that is current for it: `to` has the values for what that stream does next,
  /// and until then it must live. The host does not wait for it where the home can do without. Errors: of bring().
  virtual void copy_to(const at::Tensor& to);
  /// Nobody wants the values any more, nor reads what was lent: that is back. A home may use their place for others.
  virtual void forget() = 0;
  /// Takes the values of `tensor`, of the sizes and dtype that it keeps, in place of its own, which nobody has brought.
  /// Nobody uses `tensor` from then on, as with Home::keep(). Errors: as there.
  virtual void replace(const at::Tensor& tensor) = 0;
};

/// Keeps tensors. It outlives what it keeps.
/// Thread safety: several threads may call keep() at once.
class Home {
 public:
  virtual ~Home() = default;
  /// Takes the values of `tensor`, which nobody uses from then on. Errors: it cannot (a full disk).
  virtual std::unique_ptr<Kept> keep(const at::Tensor& tensor) = 0;
  /// Where it lends tensors that it was given on `device`: whoever works with them computes there.
  virtual at::Device lends_on(at::Device device) const { return device; }
};

/// Keeps tensors where they are.
class InPlace final : public Home {
 public:
  std::unique_ptr<Kept> keep(const at::Tensor& tensor) override;
};

/// `kept`, which lends tensors of another device, brought as copies on `device`; those that were changed are copied
/// back. Memory: of what is brought, the copy. Cost: bring() waits for the other device.
std::shared_ptr<Kept> brought_to(at::Device device, std::shared_ptr<Kept> kept);

}  // namespace colossal::memory
