// Tables with one learned vector per token id or position.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/parameter.h"

namespace colossal::nn {

/// A table with one learned vector per id.
class Embedding {
 public:
  virtual ~Embedding() = default;
  virtual at::Tensor forward(const at::Tensor& ids /*[B, S]*/, const ForwardContext& step) = 0;  ///< [B, S, H]
  virtual Parameter& weight() = 0;
};

}  // namespace colossal::nn
