// Labelled images in memory as samples: normalised and, for training, lightly augmented.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "colossal/data/batches.h"

namespace colossal::data {

struct ImageSet {
  at::Tensor pixels;  ///< uint8 [N, C, side, side]
  at::Tensor labels;  ///< int64 [N], below `classes`
  int64_t classes = 0;
  std::vector<float> mean, deviation;  ///< of each channel, of pixels in [0, 1]
  std::string fingerprint;             ///< changes with the images: what a data position in a checkpoint refers to
};

/// Sample i is image i, each channel of mean 0 and variance 1, as float [C, side, side].
///
/// With `augment`, mirrored left to right every second time and shifted by up to 4 pixels each way, by (seed, epoch,
/// sample) alone; what comes in from outside has the mean colour.
/// Errors: the constructor throws Error("data", ...) when there are no images.
class ImageSamples : public Samples {
 public:
  ImageSamples(ImageSet set, bool augment);
  int64_t count() const override { return set_.pixels.size(0); }
  tensor::Batch make(int64_t rows) const override;
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  nlohmann::json traits() const override;

 private:
  ImageSet set_;
  bool augment_;
};

}  // namespace colossal::data
