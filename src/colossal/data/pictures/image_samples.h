// Samples of labelled images in memory, normalised and, for training, lightly augmented.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "colossal/data/batches.h"

namespace colossal::data {

/// A set of labelled images.
struct ImageSet {
  at::Tensor pixels;  ///< uint8 [N, C, side, side]
  at::Tensor labels;  ///< int64 [N], below `classes`
  int64_t classes = 0;
  std::vector<float> mean, deviation;  ///< mean and standard deviation of each channel, of pixels in [0, 1]
  std::string fingerprint;             ///< changes with the images; a checkpoint's data position needs the same
};

/// Samples of images. Sample i is image i as float [C, side, side], normalised by `mean` and `deviation`.
///
/// With `augment` every second sample on average is mirrored left to right, and samples are shifted by up to 4 pixels
/// in each direction. Both are pure functions of (seed, epoch, sample). Pixels from outside the image have the mean
/// colour.
/// Errors: the constructor throws Error("data", ...) if there are no images.
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
