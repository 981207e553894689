#include <algorithm>
#include <cmath>

#include "colossal/data/pictures/picture.h"

namespace colossal::data {
namespace {

/// The source pixels of one resampled pixel, and their weights.
struct Taps {
  int64_t first = 0;
  std::vector<float> weights;
  int64_t end() const { return first + static_cast<int64_t>(weights.size()); }
};

/// Returns the taps for resampling pixels [begin, begin + size) to `count` pixels, in a row of `limit` pixels.
std::vector<Taps> taps_of(double begin, double size, int64_t count, int64_t limit) {
  const double scale = size / static_cast<double>(count), reach = std::max(scale, 1.0);
  std::vector<Taps> taps(count);
  for (int64_t i = 0; i < count; ++i) {
    const double centre = begin + (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::clamp<int64_t>(std::llround(centre - reach), 0, limit - 1);
    const int64_t last = std::clamp<int64_t>(std::llround(centre + reach), first + 1, limit);
    taps[i].first = first;
    double sum = 0;
    for (int64_t at = first; at < last; ++at)
      sum += std::max(0.0, 1 - std::abs((static_cast<double>(at) + 0.5 - centre) / reach));
    for (int64_t at = first; at < last; ++at) {
      const double weight = std::max(0.0, 1 - std::abs((static_cast<double>(at) + 0.5 - centre) / reach));
      taps[i].weights.push_back(static_cast<float>(sum > 0 ? weight / sum : 1.0 / static_cast<double>(last - first)));
    }
  }
  return taps;
}

}  // namespace

int64_t resample_margin(double length, int64_t count) {
  return static_cast<int64_t>(std::ceil(std::max(length / static_cast<double>(count), 1.0))) + 1;
}

Picture resample(const Picture& from, const Box& box, int64_t width, int64_t height) {
  const auto columns =
      taps_of(box.left * from.scale_x - static_cast<double>(from.left), box.width * from.scale_x, width, from.width);
  const auto rows =
      taps_of(box.top * from.scale_y - static_cast<double>(from.top), box.height * from.scale_y, height, from.height);
  const int64_t first = columns.front().first, count = (columns.back().end() - first) * 3;
  // `wide` is a row of the result as wide as the part, `narrow` the row as wide as the result. A pixel is read and
  // written as four numbers, because that is one vector operation. The fourth number belongs to the neighbour.
  std::vector<float> wide(count + 1), narrow(width * 3 + 1);
  Picture to{width, height, std::vector<uint8_t>(width * height * 3)};
  for (int64_t y = 0; y < height; ++y) {
    std::fill(wide.begin(), wide.end(), 0.5F);  // rounds the result, because the weights sum to one
    const uint8_t* row = from.rgb.data() + (rows[y].first * from.width + first) * 3;
    for (const float weight : rows[y].weights) {
      for (int64_t i = 0; i < count; ++i) wide[i] += weight * static_cast<float>(row[i]);
      row += from.width * 3;
    }
    for (int64_t x = 0; x < width; ++x) {
      const float* pixel = wide.data() + (columns[x].first - first) * 3;
      float sum[4] = {};
      for (const float weight : columns[x].weights) {
        for (int64_t c = 0; c < 4; ++c) sum[c] += weight * pixel[c];
        pixel += 3;
      }
      std::copy_n(sum, 4, narrow.data() + x * 3);
    }
    uint8_t* out = to.rgb.data() + y * width * 3;
    for (int64_t i = 0; i < width * 3; ++i)
      out[i] = static_cast<uint8_t>(static_cast<int>(std::clamp(narrow[i], 0.0F, 255.0F)));
  }
  return to;
}

}  // namespace colossal::data
