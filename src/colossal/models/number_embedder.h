// The vector of a number that denoisers are told, such as the time of a noised picture or the frame rate of a clip.
//
//   const NumberEmbedder of_time("time", 384, {.first_deviation = 0.02, .second_deviation = 0.02}, make);
//   const at::Tensor condition = of_time.forward(part(batch.field("times"), step));      // [B] -> [B, 384]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "colossal/models/vector_embedder.h"
#include "colossal/nn/layers.h"

namespace colossal::models {

struct NumberEmbedding {
  int64_t sinusoids = 256;                           ///< number of sines and cosines of a number
  double shift = 0;                                  ///< nn::SinusoidOptions::shift
  double first_deviation = 0, second_deviation = 0;  ///< of the initial weights of the two linear layers
};

/// The VectorEmbedder of the sinusoids of a number, cosines first.
class NumberEmbedder {
 public:
  /// Makes the parameters `name`.linear_1 and `name`.linear_2, each with weight and bias.
  NumberEmbedder(const std::string& name, int64_t size, const NumberEmbedding& options, nn::Layers& make);
  /// Returns [..., size] from numbers [...] of any type; with ranks that split features, this rank's part.
  at::Tensor forward(const at::Tensor& numbers) const;

 private:
  NumberEmbedding options_;
  at::ScalarType dtype_;
  VectorEmbedder of_sinusoids_;
};

}  // namespace colossal::models
