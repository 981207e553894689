// Samples of drawn shapes: the pictures of data.path = "builtin-shapes".
#pragma once
#include <string>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/pictures/normalization.h"
#include "colossal/data/pictures/shapes.h"

namespace colossal::data {

/// Options of ShapeSamples.
struct ShapeOptions {
  int64_t count = 0;  ///< number of pictures in an epoch; must be set (at least 1)
  int64_t width = 0;  ///< the width in pixels; must be set (at least 1)
  int64_t height = width;
  std::vector<double> mean, deviation;  ///< mean and deviation of each channel, for pixels in [0, 1]; must be set
  bool augment = false;                 ///< true = every second sample on average is mirrored left to right
  bool held_out = false;                ///< true = the held-out pictures, which do not depend on the seed of a sample
  /// Label of each shape; empty = its number.
  std::vector<int64_t> labels{};
};

/// Samples of drawn shapes. Sample i is a picture of shape i mod 10 (shape_of()), as float [3, height, width],
/// normalised by the mean and deviation of the options. A training picture is a pure function of (seed, epoch, sample),
/// so each epoch has new ones. A held-out picture is a function of its index alone.
/// Errors: the constructor throws Error("data", ...) if the count or a side is below 1, if there is not one label for
///         each shape, and errors of Normalization.
class ShapeSamples final : public Samples {
 public:
  explicit ShapeSamples(ShapeOptions options);
  int64_t count() const override { return options_.count; }
  tensor::Batch make(int64_t rows) const override;
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  /// Returns the options.
  nlohmann::json traits() const override;

 private:
  ShapeOptions options_;
  Normalization normalization_;
};

}  // namespace colossal::data
