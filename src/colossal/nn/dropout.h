// Dropout of hidden states.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/nn/forward_context.h"

namespace colossal::nn {

/// Part of a ForwardContext: the hidden states have one token per row, the class token, whichever rank holds it.
/// Dropout then numbers rows only.
struct ClassTokens {};

/// Dropout whose masks are the same under every layout.
class Dropout {
 public:
  virtual ~Dropout() = default;
  /// Returns x [B, S, H] * mask / (1 - p) while training, otherwise x. The mask depends only on the step's seed, the
  /// layer's name and the logical index of the element.
  virtual at::Tensor forward(const at::Tensor& x, const ForwardContext& step) = 0;
};

}  // namespace colossal::nn
