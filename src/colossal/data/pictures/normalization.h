// The channel means and standard deviations by which pictures become inputs of a model.
//
//   const data::Normalization normalization({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
//   normalization.write(picture, false, batch.at("images").mutable_data_ptr<float>());
#pragma once
#include <array>
#include <vector>

#include "colossal/data/pictures/picture.h"

namespace colossal::data {

/// Maps each 8-bit value v of a channel to (v / 255 - mean) / deviation, from a table.
/// Errors: the constructor throws Error("data", ...) if mean or deviation do not have three values, or a deviation is
///         not above 0.
class Normalization {
 public:
  Normalization(const std::vector<double>& mean, const std::vector<double>& deviation);
  /// Writes the picture as [3, height, width] to `out`, mirrored left to right if `mirrored` is true.
  void write(const Picture& picture, bool mirrored, float* out) const;

 private:
  std::array<std::array<float, 256>, 3> values_{};  // for each channel, the normalised value of each byte
};

}  // namespace colossal::data
