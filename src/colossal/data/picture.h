// Pictures in PNG and JPEG files, which anybody may have made.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::data {

constexpr int64_t kMostPixels = int64_t{1} << 26;  ///< of a picture: 192 MiB decoded

/// 8-bit red, green and blue, row by row from the top left.
struct Picture {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb{};
  int64_t full_width = 0, full_height = 0;  ///< before a JPEG was decoded at a part of its size
};

/// How many pixels the shorter side of a picture of that size must keep.
using LeastSide = std::function<int64_t(int64_t width, int64_t height)>;

/// The picture that a file's bytes are, whatever its name says, turned as its EXIF orientation wants.
///
/// Gray, palettes and one to 16 bits a sample become 8-bit RGB (the high byte), alpha is dropped, CMYK becomes
/// (255 - C) (255 - K) / 255 and so on, profiles are passed over: as Pillow's convert("RGB"). A JPEG may be decoded
/// at 1/2, 1/4 or 1/8 of its size, the smallest whose shorter side still has least_side(...) pixels: much cheaper, and
/// close to, not the same as, averaging the whole one. None: whole.
/// Errors ("data"), naming the file: neither PNG nor JPEG, damaged, cut short, more than kMostPixels (before they are
/// allocated), more than 500 scans.
Picture decode_picture(std::string_view bytes, const std::string& name, const LeastSide& least_side = {});

/// The two formats. As decode_picture(), but not turned: `orientation` is EXIF's 1 to 8.
Picture decode_png(std::string_view bytes, const std::string& name, int& orientation);
Picture decode_jpeg(std::string_view bytes, const std::string& name, const LeastSide& least_side, int& orientation);

/// The orientation of an EXIF block (of TIFF, behind `Exif\0\0`); 1 where it says none or is damaged.
int exif_orientation(std::string_view tiff);

/// The part [left, left + width) x [top, top + height) of a picture, resampled to side x side: each pixel the mean of
/// those around it, weighted by a triangle as wide as the reduction (Pillow's and torchvision's antialiased bilinear),
/// to within one step.
Picture resample(const Picture& from, double left, double top, double width, double height, int64_t side);

}  // namespace colossal::data
