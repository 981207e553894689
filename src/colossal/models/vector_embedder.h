// The vector of a model from a vector that it is told, such as the state of a whole text.
//
//   const VectorEmbedder of_text("pooled", {.in = 768, .size = 3072, .first = 0.02, .second = 0.02}, make);
//   const at::Tensor condition = of_text.forward(part(batch.field("pooled"), step));     // [B, 768] -> [B, 3072]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/field_linear.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"

namespace colossal::models {

struct VectorEmbedding {
  int64_t in = 0, size = 0;      ///< features that are read, and those of the model
  double first = 0, second = 0;  ///< standard deviations of the initial weights of the two layers
};

/// linear(silu(linear(x))). Every rank computes it for its rows; the layers take few vectors a row, so there is little
/// to divide.
class VectorEmbedder {
 public:
  /// Makes the parameters `name`.linear_1 and `name`.linear_2, each with weight and bias.
  VectorEmbedder(const std::string& name, const VectorEmbedding& sizes, nn::Layers& make);
  /// Returns [..., size] from vectors [..., in], in the dtype of the model; with ranks that split features, this rank's
  /// part.
  at::Tensor forward(const at::Tensor& x) const;

 private:
  at::ScalarType dtype_;
  nn::FieldLinear first_;
  std::unique_ptr<nn::Dense> second_;
};

}  // namespace colossal::models
