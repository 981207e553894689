// Logits within +- cap: cap tanh(logits / cap) (Gemma 2, arXiv:2408.00118, section 2).
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Returns the capped logits, computed by LibTorch's operators with its autograd. A cap of 0 returns the logits
/// themselves.
at::Tensor soft_capped(const at::Tensor& logits, double cap);

/// Caps slices of logits in place, and computes their gradients. A cap of 0 does nothing. Memory: with gradients, a
/// copy of the first slice, which must be the longest.
class SoftCap {
 public:
  SoftCap(double cap, bool with_gradient) : cap_(cap), with_gradient_(with_gradient) {}
  /// Caps the logits in place, without autograd.
  void bend_(const at::Tensor& logits);
  /// Replaces the gradient of the capped logits by the gradient of the logits, for the slice of the last bend_().
  void unbend_(at::Tensor gradient) const;

 private:
  double cap_;
  bool with_gradient_;
  at::Tensor kept_;  // tanh(logits / cap)
};

}  // namespace colossal::ops
