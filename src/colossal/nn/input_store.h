// Storage for the inputs of recomputed functions between forward and backward, which moves the kept activations off the
// device.
//
//   memory::InputsAt inputs(store);                                      // an nn::InputStore: host memory and disk
//   const auto after = nn::recomputed(block, {hidden, pair}, &inputs);   // without &inputs it keeps them itself
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "colossal/nn/recompute.h"

namespace colossal::nn {

/// Handle to the stored inputs of one function. Destroying it frees the storage, even if no backward pass has run.
class OffloadedInputs {
 public:
  OffloadedInputs() = default;
  virtual ~OffloadedInputs() = default;
  OffloadedInputs(const OffloadedInputs&) = delete;
  OffloadedInputs& operator=(const OffloadedInputs&) = delete;
  /// Returns tensors with the values, sizes, strides and device that offload() was given, in its order. The caller owns
  /// them. May be called once.
  virtual std::vector<at::Tensor> take() = 0;
};

/// A store for inputs. It must outlive the handles that it returns. Thread safety: take() may be called by another
/// thread than offload().
class InputStore {
 public:
  virtual ~InputStore() = default;
  /// Stores the inputs of one function. The caller may free or overwrite them when this returns.
  virtual std::unique_ptr<OffloadedInputs> offload(const std::vector<at::Tensor>& inputs) = 0;
};

/// Returns recomputed(function, inputs), with the inputs stored in `store` (null = kept as they are). The autograd node
/// does not hold their memory between forward and backward. Gradients are the same bit by bit. Errors: the errors of
/// `store`; "recompute": a second backward pass, for which the inputs no longer exist.
std::vector<at::Tensor> recomputed(const Nary& function, const std::vector<at::Tensor>& inputs, InputStore* store);

}  // namespace colossal::nn
