#include "colossal/data/pictures/picture.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::data {
namespace {

/// A reader of numbers in the byte order of a TIFF block. The caller checks the bounds with holds().
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

Picture turn(const Picture& from, int orientation) {
  const bool swaps = orientation >= 5;
  Picture to{swaps ? from.height : from.width, swaps ? from.width : from.height};
  to.scale_x = swaps ? from.scale_y : from.scale_x;
  to.scale_y = swaps ? from.scale_x : from.scale_y;
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

Picture decode_picture(std::string_view bytes, const std::string& name, const CropFunction& crop) {
  int orientation = 1;
  Picture picture;
  const bool is_png = bytes.starts_with("\x89PNG\r\n\x1a\n"), is_jpeg = bytes.starts_with("\xff\xd8");
  const bool is_webp = bytes.starts_with("RIFF") && bytes.substr(std::min<size_t>(8, bytes.size())).starts_with("WEBP");
  require(is_png || is_jpeg || is_webp, "data", name, " is neither a PNG nor a JPEG nor a WebP file");
  if (is_png) picture = decode_png(bytes, name, orientation);
  if (is_jpeg) picture = decode_jpeg(bytes, name, crop, orientation);
  if (is_webp) picture = decode_webp(bytes, name, orientation);
  if (orientation != 1) picture = turn(picture, orientation);
  // PNG and WebP are decoded whole, but the caller expects the call.
  if (!is_jpeg && crop) crop(picture.width, picture.height);
  return picture;
}

}  // namespace colossal::data
