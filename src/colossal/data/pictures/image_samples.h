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

/// Mean and deviation of red, green and blue over the 50,000 training images of CIFAR-10, for pixels in [0, 1].
inline const std::vector<double> kCifarMean{0.4914, 0.4822, 0.4465}, kCifarDeviation{0.2470, 0.2435, 0.2616};

/// Returns true if the folder has binary files of CIFAR-10 (read_cifar()).
bool is_cifar(const std::string& folder);

/// The parts of CIFAR-10.
enum class CifarPart {
  Training,  ///< data_batch_*.bin
  Test,      ///< test_batch*.bin
};

/// Returns all images of one part of CIFAR-10 (Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html), from
/// its files in `folder` in the order of their names. A file may be compressed (.bin.gz). A file consists of records:
/// one byte with the label and 3072 bytes with the pixels, which are red, green and blue, each 32 x 32 by rows.
///
/// Errors: throws Error("data", ...) if the folder or the files are missing (the message says which files to put
///         where), a file exists twice (uncompressed and compressed), a length is no whole number of records, or a
///         label is above 9.
/// Memory: 3 KB per image, 154 MB for the 50,000 images of the whole training part.
ImageSet read_cifar(const std::string& folder, CifarPart part);

}  // namespace colossal::data
