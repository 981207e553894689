// Where the inputs of recomputed functions lie between forward and backward: what is left of activations to move away.
//
//   memory::InputsAt inputs(home);                                    // an nn::InputHome: host memory and disk
//   const auto after = nn::recomputed(block, {hidden, pair}, &inputs);   // without &inputs it keeps them itself
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "colossal/nn/recompute.h"

namespace colossal::nn {

/// The inputs of one function. Its end frees their place, also when backward never comes.
class KeptInputs {
 public:
  KeptInputs() = default;
  virtual ~KeptInputs() = default;
  KeptInputs(const KeptInputs&) = delete;
  KeptInputs& operator=(const KeptInputs&) = delete;
  /// Tensors of the values, sizes, strides and device that keep() was given, in its order; the caller owns them. Once.
  virtual std::vector<at::Tensor> take() = 0;
};

/// Keeps inputs. It outlives them. Thread safety: take() may be called by another thread than keep().
class InputHome {
 public:
  virtual ~InputHome() = default;
  /// Keeps the inputs of one function. They may be freed or overwritten when this returns.
  virtual std::unique_ptr<KeptInputs> keep(const std::vector<at::Tensor>& inputs) = 0;
};

/// recomputed(function, inputs), but the inputs are kept by `home` (null: as they are). Nothing of the node holds their
/// memory meanwhile. Gradients are the same bit by bit. Errors: those of `home`; "recompute": a second backward through
/// it, whose inputs are gone.
std::vector<at::Tensor> recomputed(const Nary& function, const std::vector<at::Tensor>& inputs, InputHome* home);

}  // namespace colossal::nn
