// The end of a diffusion transformer: a norm without weights, which a condition modulates, and the projection to the
// patches of the prediction.
//
//   const ModulatedEnd end(make, hidden, patch * patch * channels);
//   states[0] = end.forward(states[0], states[kCondition], step);       // [B, patches, patch * patch * channels]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "colossal/nn/layers.h"
#include "colossal/nn/modulation.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"

namespace colossal::models {

/// Its parameters are `norm.modulation` and `head`. The head starts at 0, so the first prediction is 0. The norm has
/// an epsilon of 1e-6.
class ModulatedEnd {
 public:
  ModulatedEnd(nn::Layers& make, int64_t hidden, int64_t outputs);
  /// Returns the outputs for x [B, T, hidden] and a condition [B, hidden], whole on every rank, in fp32 at least.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& condition, const nn::ForwardContext& step) const;

 private:
  std::unique_ptr<nn::Modulation> modulation_;
  std::unique_ptr<nn::Norm> norm_;
  std::unique_ptr<nn::Outputs> outputs_;
};

}  // namespace colossal::models
