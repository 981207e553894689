#include "colossal/data/pictures/image_samples.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/seed.h"

namespace colossal::data {
namespace {

constexpr int64_t kShift = 4;  // maximum shift in pixels

struct Change {
  bool mirrored = false;
  int64_t down = 0, right = 0;
};

Change draw(uint64_t seed) {
  const auto below = [&](uint64_t choice, int64_t count) {
    return static_cast<int64_t>(derive_seed(seed, choice) % static_cast<uint64_t>(count));
  };
  return {below(0, 2) == 1, below(1, 2 * kShift + 1) - kShift, below(2, 2 * kShift + 1) - kShift};
}

}  // namespace

ImageSamples::ImageSamples(ImageSet set, bool augment) : set_(std::move(set)), augment_(augment) {
  require(set_.pixels.dim() == 4 && set_.pixels.size(0) > 0, "data", "there must be images: got ", set_.pixels.sizes());
}

tensor::Batch ImageSamples::make(int64_t rows) const {
  const at::Tensor& p = set_.pixels;
  return image_batch(at::zeros({rows, p.size(1), p.size(2), p.size(3)}, at::kFloat), at::zeros({rows, 1}, at::kLong));
}

void ImageSamples::fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const {
  const int64_t channels = set_.pixels.size(1), height = set_.pixels.size(2), width = set_.pixels.size(3),
                pixels = height * width;
  const Change change = augment_ ? draw(seed) : Change{};
  const uint8_t* from = set_.pixels.const_data_ptr<uint8_t>() + index * channels * pixels;
  float* to = batch.at("images").mutable_data_ptr<float>() + row * channels * pixels;
  for (int64_t c = 0; c < channels; ++c, from += pixels, to += pixels) {
    const float scale = 1 / (255 * set_.deviation[c]), shift = -set_.mean[c] / set_.deviation[c];
    for (int64_t y = std::max<int64_t>(0, change.down); y < std::min(height, height + change.down); ++y)
      for (int64_t x = std::max<int64_t>(0, change.right); x < std::min(width, width + change.right); ++x) {
        const int64_t source = x - change.right, column = change.mirrored ? width - 1 - source : source;
        to[y * width + x] = static_cast<float>(from[(y - change.down) * width + column]) * scale + shift;
      }
  }
  batch.at("labels").mutable_data_ptr<int64_t>()[row] = set_.labels.const_data_ptr<int64_t>()[index];
}

nlohmann::json ImageSamples::traits() const { return {{"images", set_.fingerprint}, {"augment", augment_}}; }

}  // namespace colossal::data
