#include "colossal/data/picture.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"

namespace colossal::data {
namespace {

/// Reads numbers of either byte order within bounds.
class Tiff {
 public:
  explicit Tiff(std::string_view bytes) : bytes_(bytes), is_big_(bytes.starts_with("MM")) {}
  bool holds(uint64_t at, uint64_t count) const { return at <= bytes_.size() && count <= bytes_.size() - at; }
  uint32_t number(uint64_t at, int count) const {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) {
      const int place = is_big_ ? i : count - 1 - i;
      value = value << 8 | static_cast<unsigned char>(bytes_[at + place]);
    }
    return value;
  }

 private:
  std::string_view bytes_;
  bool is_big_;
};

/// Orientation 1 of a picture that has another.
Picture turn(const Picture& from, int orientation) {
  const bool swaps = orientation >= 5;
  Picture to{swaps ? from.height : from.width, swaps ? from.width : from.height};
  to.full_width = swaps ? from.full_height : from.full_width;
  to.full_height = swaps ? from.full_width : from.full_height;
  to.rgb.resize(from.rgb.size());
  const bool mirrored = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool flipped = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  for (int64_t y = 0; y < to.height; ++y)
    for (int64_t x = 0; x < to.width; ++x) {
      int64_t column = swaps ? y : x, row = swaps ? x : y;
      if (mirrored) column = from.width - 1 - column;
      if (flipped) row = from.height - 1 - row;
      std::copy_n(&from.rgb[(row * from.width + column) * 3], 3, &to.rgb[(y * to.width + x) * 3]);
    }
  return to;
}

/// Which pixels one resampled one is made of, and with which weights.
struct Taps {
  int64_t first = 0;
  std::vector<float> weights;
};

std::vector<Taps> taps_of(double begin, double size, int64_t side, int64_t limit) {
  const double scale = size / static_cast<double>(side), reach = std::max(scale, 1.0);
  std::vector<Taps> taps(side);
  for (int64_t i = 0; i < side; ++i) {
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

int exif_orientation(std::string_view bytes) {
  constexpr uint32_t kOrientation = 0x0112, kShort = 3;
  const Tiff tiff(bytes);
  if (bytes.size() < 8 || (!bytes.starts_with("MM") && !bytes.starts_with("II")) || tiff.number(2, 2) != 42) return 1;
  const uint64_t folder = tiff.number(4, 4);
  if (!tiff.holds(folder, 2)) return 1;
  const uint32_t entries = tiff.number(folder, 2);
  for (uint64_t i = 0, at = folder + 2; i < entries && tiff.holds(at, 12); ++i, at += 12)
    if (tiff.number(at, 2) == kOrientation && tiff.number(at + 2, 2) == kShort) {
      const uint32_t value = tiff.number(at + 8, 2);
      return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
  return 1;
}

Picture decode_picture(std::string_view bytes, const std::string& name, const LeastSide& least_side) {
  int orientation = 1;
  Picture picture;
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) {
    picture = decode_png(bytes, name, orientation);
  } else {
    require(bytes.starts_with("\xff\xd8"), "data", name, " is neither a PNG nor a JPEG file");
    picture = decode_jpeg(bytes, name, least_side, orientation);
  }
  return orientation == 1 ? picture : turn(picture, orientation);
}

Picture resample(const Picture& from, double left, double top, double width, double height, int64_t side) {
  const std::vector<Taps> columns = taps_of(left, width, side, from.width),
                          rows = taps_of(top, height, side, from.height);
  const int64_t first = rows.front().first;
  const int64_t last = rows.back().first + static_cast<int64_t>(rows.back().weights.size());
  std::vector<float> narrow((last - first) * side * 3);  // the rows that are needed, as wide as the result
  for (int64_t y = first; y < last; ++y) {
    const uint8_t* row = from.rgb.data() + y * from.width * 3;
    float* out = narrow.data() + (y - first) * side * 3;
    for (const Taps& column : columns) {
      float red = 0, green = 0, blue = 0;
      const uint8_t* pixel = row + column.first * 3;
      for (const float weight : column.weights) {
        red += weight * static_cast<float>(pixel[0]);
        green += weight * static_cast<float>(pixel[1]);
        blue += weight * static_cast<float>(pixel[2]);
        pixel += 3;
      }
      *out++ = red, *out++ = green, *out++ = blue;
    }
  }
  Picture to{side, side, std::vector<uint8_t>(side * side * 3), side, side};
  std::vector<float> sum(side * 3);
  for (int64_t y = 0; y < side; ++y) {
    std::fill(sum.begin(), sum.end(), 0.5F);
    const float* row = narrow.data() + (rows[y].first - first) * side * 3;
    for (const float weight : rows[y].weights) {
      for (int64_t i = 0; i < side * 3; ++i) sum[i] += weight * row[i];
      row += side * 3;
    }
    for (int64_t i = 0; i < side * 3; ++i)
      to.rgb[y * side * 3 + i] = static_cast<uint8_t>(std::clamp(sum[i], 0.0F, 255.0F));
  }
  return to;
}

}  // namespace colossal::data
