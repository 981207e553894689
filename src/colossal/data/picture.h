// Pictures in PNG and JPEG files, which anybody may have made.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::data {

constexpr int64_t kMostPixels = int64_t{1} << 26;  ///< of a picture: 192 MiB decoded

constexpr int64_t kLongestSide = 65535;  ///< in pixels: what a JPEG can say

/// 8-bit red, green and blue, row by row from the top left: of a file's picture, of it at a part of its size, or of the
/// pixels [left, left + width) x [top, top + height) of one of these.
struct Picture {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb{};
  int64_t left = 0, top = 0;
  double scale_x = 1, scale_y = 1;  ///< of the file's picture
};

/// A part of a picture, in its pixels.
struct Box {
  double left, top, width, height;
};

/// What resample() is to make of a picture of that size: a part, of `side` x `side` pixels.
struct Shown {
  Box box;
  int64_t side;
};
/// Returns the part that is wanted of an upright picture of that size. decode_picture() calls it once for every picture
/// that it returns, whichever the format.
using ShownPart = std::function<Shown(int64_t width, int64_t height)>;

/// The picture that a file's bytes are, whatever its name says, turned as its EXIF orientation wants.
///
/// Gray, palettes and one to 16 bits a sample become 8-bit RGB (the high byte), alpha is dropped, CMYK becomes
/// (255 - C) (255 - K) / 255 and so on, profiles are passed over: as Pillow's convert("RGB"). Where `shown` says which
/// part is wanted, at least the pixels that resample() needs of it are decoded, and a JPEG at 1/2, 1/4 or 1/8 of its
/// size, the smallest in which the part is no smaller than what is made of it: much cheaper, and close to, not the same
/// as, averaging the whole one. Otherwise the pixels are those of the whole picture.
/// Errors ("data"), naming the file: neither PNG nor JPEG, damaged, cut short, more than kMostPixels or a side beyond
/// kLongestSide (before they are allocated), more than 500 scans. Of a JPEG damage is what libjpeg finds in the scans:
/// codes that are none, markers within.
Picture decode_picture(std::string_view bytes, const std::string& name, const ShownPart& shown = {});

/// The two formats. As decode_picture(), but not turned: `orientation` is EXIF's 1 to 8.
Picture decode_png(std::string_view bytes, const std::string& name, int& orientation);
Picture decode_jpeg(std::string_view bytes, const std::string& name, const ShownPart& shown, int& orientation);

/// The orientation of an EXIF block (of TIFF, behind `Exif\0\0`); 1 where it says none or is damaged.
int exif_orientation(std::string_view tiff);

/// The part `box` of the file's picture, resampled to side x side: each pixel the mean of those around it, weighted by
/// a triangle as wide as the reduction (Pillow's and torchvision's antialiased bilinear), to within one step.
Picture resample(const Picture& from, const Box& box, int64_t side);

/// How many pixels beside a part resample() needs of a picture in which `length` of them become `side`, at most.
int64_t resample_margin(double length, int64_t side);

}  // namespace colossal::data
