// Announces floating-point operations to whoever counts them, as tensor::ReadScope announces reads.
//
//   tensor::FlopCount count;
//   engine.train_step(batch);
//   count.total();  // operations of this rank's matrix products and attention, forward and backward
//
// Layers that compute otherwise than by ops/matmul or ops/attention announce what they do:
//
//   tensor::announce_flops(2.0 * rows * in * out);
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

namespace c10 {
class DebugInfoGuard;
}

namespace colossal::tensor {

/// Counts what is announced while it lives: by the thread that made it, and by backward passes that this thread starts,
/// on whatever thread autograd runs them. Of several one inside the other each counts. They die in the reverse order.
class FlopCount {
 public:
  FlopCount();
  ~FlopCount();
  FlopCount(const FlopCount&) = delete;
  FlopCount& operator=(const FlopCount&) = delete;
  /// A product and a sum are two operations.
  double total() const;

 private:
  friend bool are_flops_counted();
  friend void announce_flops(double);
  friend void announce_flops_in_backward(const at::Tensor&, double);
  struct Listener;
  std::shared_ptr<Listener> listener_;
  std::unique_ptr<c10::DebugInfoGuard> listening_;
};

/// Whether anybody counts what this thread announces: where the number itself costs something to find.
bool are_flops_counted();
/// `operations` are about to be made: those that the result needs. What a kernel computes twice to save memory, and
/// elementwise work, is left out; whole layers that are computed again in backward (nn::recomputed) announce it again.
/// A mask counts by what its rule lets through, not by values (documents). Cost: next to nothing where nobody counts.
void announce_flops(double operations);
/// The same from the backward pass of `result`, if it has one and somebody counts now: for operators whose backward
/// pass is LibTorch's.
void announce_flops_in_backward(const at::Tensor& result, double operations);

}  // namespace colossal::tensor
