#include "colossal/data/pictures/normalization.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::data {

Normalization::Normalization(const std::vector<double>& mean, const std::vector<double>& deviation) {
  require(mean.size() == 3 && deviation.size() == 3 && *std::min_element(deviation.begin(), deviation.end()) > 0,
          "data", "pictures need the mean and deviation (above 0) of three channels: got ", mean.size(), " and ",
          deviation.size(), " numbers");
  for (size_t c = 0; c < 3; ++c)
    for (size_t value = 0; value < 256; ++value)
      values_[c][value] = static_cast<float>((static_cast<double>(value) / 255 - mean[c]) / deviation[c]);
}

void Normalization::write(const Picture& picture, bool mirrored, float* out) const {
  const int64_t width = picture.width;
  for (size_t c = 0; c < 3; ++c)
    for (int64_t row = 0; row < picture.height; ++row, out += width)
      for (int64_t i = 0; i < width; ++i) {
        const int64_t from = mirrored ? width - 1 - i : i;
        out[i] = values_[c][picture.rgb[(row * width + from) * 3 + c]];
      }
}

}  // namespace colossal::data
