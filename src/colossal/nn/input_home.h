// Where the inputs of recomputed functions lie between forward and backward: what is left of activations to move away.
//
//   memory::InputsAt inputs(home);                        // an nn::InputHome: host memory and disk
//   hidden = nn::recomputed(block, hidden, &inputs);      // recomputed(block, hidden) would keep `hidden` itself
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "colossal/nn/recompute.h"

namespace colossal::nn {

/// One input. Its end frees its place, also when backward never comes.
class KeptInput {
 public:
  KeptInput() = default;
  virtual ~KeptInput() = default;
  KeptInput(const KeptInput&) = delete;
  KeptInput& operator=(const KeptInput&) = delete;
  /// A tensor of the values, sizes, strides and device that keep() was given, the caller's own. Once.
  virtual at::Tensor take() = 0;
};

/// Keeps inputs. It outlives them. Thread safety: take() may be called by another thread than keep().
class InputHome {
 public:
  virtual ~InputHome() = default;
  /// `x` may be freed or overwritten when this returns.
  virtual std::unique_ptr<KeptInput> keep(const at::Tensor& x) = 0;
};

/// recomputed(function, x), but x is kept by `home` (null: as it is). Nothing of the node holds x's memory meanwhile.
/// Gradients are the same bit by bit. Errors: those of `home`; "recompute": a second backward through it, whose input
/// is gone.
at::Tensor recomputed(const Unary& function, const at::Tensor& x, InputHome* home);

}  // namespace colossal::nn
