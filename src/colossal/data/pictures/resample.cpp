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

/// A filter: its weights at a distance from the middle, and the distance from which on they are 0.
struct TapKernel {
  double (*weight)(double distance);
  double support;
};

double triangle_weight(double distance) { return std::max(0.0, 1 - std::abs(distance)); }

/// The cubic convolution with a = -1/2 (Keys 1981).
double cubic_weight(double distance) {
  const double x = std::abs(distance), a = -0.5;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/// Returns the taps for resampling pixels [begin, begin + size) to `count` pixels, in a row of `limit` pixels.
std::vector<Taps> taps_of(const TapKernel& kernel, double begin, double size, int64_t count, int64_t limit) {
  const double scale = size / static_cast<double>(count), width = std::max(scale, 1.0), reach = width * kernel.support;
  std::vector<Taps> taps(count);
  for (int64_t i = 0; i < count; ++i) {
    const double centre = begin + (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::clamp<int64_t>(std::llround(centre - reach), 0, limit - 1);
    const int64_t last = std::clamp<int64_t>(std::llround(centre + reach), first + 1, limit);
    taps[i].first = first;
    const auto weight_at = [&](int64_t at) { return kernel.weight((static_cast<double>(at) + 0.5 - centre) / width); };
    double sum = 0;
    for (int64_t at = first; at < last; ++at) sum += weight_at(at);
    for (int64_t at = first; at < last; ++at) {
      const double weight = weight_at(at);
      taps[i].weights.push_back(static_cast<float>(sum > 0 ? weight / sum : 1.0 / static_cast<double>(last - first)));
    }
  }
  return taps;
}

Picture resampled_by(const TapKernel& kernel, const Picture& from, const Box& box, int64_t width, int64_t height) {
  const auto columns = taps_of(kernel, box.left * from.scale_x - static_cast<double>(from.left),
                               box.width * from.scale_x, width, from.width);
  const auto rows = taps_of(kernel, box.top * from.scale_y - static_cast<double>(from.top), box.height * from.scale_y,
                            height, from.height);
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

}  // namespace

int64_t resample_margin(double length, int64_t count) {
  return static_cast<int64_t>(std::ceil(std::max(length / static_cast<double>(count), 1.0))) + 1;
}

Picture resample(const Picture& from, const Box& box, int64_t width, int64_t height) {
  return resampled_by({triangle_weight, 1}, from, box, width, height);
}

Picture resample_cubic(const Picture& from, const Box& box, int64_t width, int64_t height) {
  return resampled_by({cubic_weight, 2}, from, box, width, height);
}

}  // namespace colossal::data
