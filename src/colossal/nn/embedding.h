// Tables with one learned vector per token id or position, and the lookup of their rows.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/parameter.h"

namespace colossal::nn {

/// Returns rows of a table: table [rows, H], ids [...] int64 -> [..., H]. On the CPU, if a leaf already has a gradient,
/// backward adds only to the rows that were read. Each row of the gradient is summed in fp32 or wider and rounded once.
at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids);

/// A table with one learned vector per id.
class Embedding {
 public:
  virtual ~Embedding() = default;
  virtual at::Tensor forward(const at::Tensor& ids /*[B, S]*/, const ForwardContext& step) = 0;  ///< [B, S, H]
  virtual Parameter& weight() = 0;
};

}  // namespace colossal::nn
