#include "colossal/data/videos/palette.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"

namespace colossal::data {
namespace {

constexpr size_t kMaxColours = 256;

struct ColouredPlace {
  std::array<uint8_t, 3> rgb;
  uint32_t place;  // index of the pixel
};

/// A run of the pixels, whose colours are near one another.
struct ColourBox {
  size_t begin = 0, end = 0;
  size_t longest = 0;  // the channel that differs most
  int length = 0;      // by how much
  double weight() const { return std::sqrt(static_cast<double>(end - begin)) * length; }
};

ColourBox colour_box(const std::vector<ColouredPlace>& pixels, size_t begin, size_t end) {
  ColourBox box{.begin = begin, .end = end};
  for (size_t c = 0; c < 3; ++c) {
    uint8_t least = 255, most = 0;
    for (size_t i = begin; i < end; ++i) {
      least = std::min(least, pixels[i].rgb[c]);
      most = std::max(most, pixels[i].rgb[c]);
    }
    if (most - least > box.length) box.longest = c, box.length = most - least;
  }
  return box;
}

/// Sorts the pixels of a box, of at least two colours, into two parts, and returns the begin of the second.
size_t divide(std::vector<ColouredPlace>& pixels, const ColourBox& box) {
  const auto begin = pixels.begin() + static_cast<int64_t>(box.begin),
             end = pixels.begin() + static_cast<int64_t>(box.end), middle = begin + (end - begin) / 2;
  const auto value = [&](const ColouredPlace& pixel) { return pixel.rgb[box.longest]; };
  std::nth_element(begin, middle, end,
                   [&](const ColouredPlace& a, const ColouredPlace& b) { return value(a) < value(b); });
  const uint8_t median = value(*middle);
  // Pixels of one colour stay together.
  auto cut = std::partition(begin, end, [&](const ColouredPlace& pixel) { return value(pixel) < median; });
  if (cut == begin)
    cut = std::partition(begin, end, [&](const ColouredPlace& pixel) { return value(pixel) <= median; });
  return static_cast<size_t>(cut - pixels.begin());
}

std::array<uint8_t, 3> mean_colour(const std::vector<ColouredPlace>& pixels, const ColourBox& box) {
  std::array<uint8_t, 3> mean{};
  for (size_t c = 0; c < 3; ++c) {
    uint64_t sum = 0;
    for (size_t i = box.begin; i < box.end; ++i) sum += pixels[i].rgb[c];
    const uint64_t count = box.end - box.begin;
    mean[c] = static_cast<uint8_t>((sum + count / 2) / count);
  }
  return mean;
}

}  // namespace

PalettePicture with_palette(const Picture& picture) {
  std::vector<ColouredPlace> pixels(picture.rgb.size() / 3);
  require(!pixels.empty(), "data", "a picture with a palette must have pixels: got none");
  for (size_t i = 0; i < pixels.size(); ++i) {
    const uint8_t* rgb = picture.rgb.data() + 3 * i;
    pixels[i] = {{rgb[0], rgb[1], rgb[2]}, static_cast<uint32_t>(i)};
  }
  std::vector<ColourBox> boxes{colour_box(pixels, 0, pixels.size())};
  while (boxes.size() < kMaxColours) {
    const auto widest = std::max_element(
        boxes.begin(), boxes.end(), [](const ColourBox& a, const ColourBox& b) { return a.weight() < b.weight(); });
    if (widest->length == 0) break;
    const size_t begin = widest->begin, end = widest->end, cut = divide(pixels, *widest);
    *widest = colour_box(pixels, begin, cut);
    boxes.push_back(colour_box(pixels, cut, end));
  }
  PalettePicture few;
  few.pixels.resize(pixels.size());
  for (const ColourBox& box : boxes) {
    for (size_t i = box.begin; i < box.end; ++i) few.pixels[pixels[i].place] = static_cast<uint8_t>(few.colours.size());
    few.colours.push_back(mean_colour(pixels, box));
  }
  return few;
}

}  // namespace colossal::data
