// Dropout of hidden states.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/nn/forward_context.h"

namespace colossal::nn {

/// Dropout whose masks are the same under every layout.
class Dropout {
 public:
  virtual ~Dropout() = default;
  /// Returns x [B, S, H] * mask / (1 - p) while training, otherwise x. The mask depends only on the step's seed, the
  /// layer's name and the logical index of the element.
  virtual at::Tensor forward(const at::Tensor& x, const ForwardContext& step) = 0;
};

}  // namespace colossal::nn
