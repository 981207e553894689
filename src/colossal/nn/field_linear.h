// A linear layer at the start of a model, which reads vectors of a batch, such as the sinusoids of times.
//
//   const nn::FieldLinear first(layers, "time.linear_1", 256, 64, 0.02);
//   condition = second->forward(at::silu(first.forward(sinusoids)));                   // [B, 256] -> [B, 64]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/layers.h"
#include "colossal/nn/product.h"
#include "colossal/nn/vector.h"

namespace colossal::nn {

/// y [..., H] = x [..., in] Wt + bias, where every rank has x whole, and of y its features between blocks. The weight
/// [H, in] and the bias [H] are vectors of these features.
class FieldLinear {
 public:
  /// `deviation`: standard deviation of the initial weight.
  FieldLinear(Layers& make, const std::string& name, int64_t in, int64_t hidden, double deviation);
  /// Returns this rank's features of y. Call it once in each forward pass, as Vector::value().
  at::Tensor forward(const at::Tensor& x) const;

 private:
  std::unique_ptr<Vector> weight_, bias_;
  std::shared_ptr<const Product> product_;
};

}  // namespace colossal::nn
