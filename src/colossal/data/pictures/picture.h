// Pictures in PNG and JPEG files. The decoders accept files from untrusted sources.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::data {

constexpr int64_t kMaxPixels = int64_t{1} << 26;  ///< maximum pixels of a picture; they take 192 MiB decoded

constexpr int64_t kMaxSide = 65535;  ///< maximum pixels in a row or column, the largest size that a JPEG can have

/// A picture of 8-bit red, green and blue, row by row from the top left. It is the picture of a file, at its size or
/// reduced. It may be a part of that: the pixels [left, left + width) x [top, top + height).
struct Picture {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb{};
  int64_t left = 0, top = 0;
  double scale_x = 1, scale_y = 1;  ///< size relative to the file's picture
};

/// A part of a picture, in pixels of the file's picture.
struct Box {
  double left, top, width, height;
};

/// The request of a caller: a part of the picture, to be resampled to `side` x `side` pixels.
struct Crop {
  Box box;
  int64_t side;
};
/// A function that returns the requested part of an upright picture of a given size. decode_picture() calls it once for
/// every picture that it returns, for both formats.
using CropFunction = std::function<Crop(int64_t width, int64_t height)>;

/// Decodes the picture in the bytes of a file and turns it by its EXIF orientation. The bytes decide the format; the
/// file's name does not.
///
/// The result is the same as Pillow's convert("RGB"). Gray, palettes and 1 to 16 bits per sample become 8-bit RGB (the
/// high byte). CMYK becomes (255 - C) (255 - K) / 255 and so on. Alpha is dropped, and colour profiles are ignored.
///
/// If `crop` requests a part, at least the pixels that resample() needs for it are decoded. A JPEG is then decoded at
/// 1/2, 1/4 or 1/8 of its size if the part still has at least `side` pixels per side; the smallest such size is used.
/// This is much cheaper than averaging the full picture, and close to it, but not equal. A PNG is always decoded in
/// full. Without `crop`, all pixels of the full picture are decoded.
/// Errors ("data"), with the file's name: the bytes are neither PNG nor JPEG, or are damaged or cut short. The picture
/// has more than kMaxPixels or a side above kMaxSide (found before the allocation), or more than 500 scans. A JPEG
/// counts as damaged if libjpeg finds invalid codes or markers within its scans.
Picture decode_picture(std::string_view bytes, const std::string& name, const CropFunction& crop = {});

/// Decodes one of the two formats like decode_picture(), but does not turn the picture. `orientation` is set to the
/// EXIF orientation, 1 to 8.
Picture decode_png(std::string_view bytes, const std::string& name, int& orientation);
Picture decode_jpeg(std::string_view bytes, const std::string& name, const CropFunction& crop, int& orientation);

/// Returns the picture as a PNG file. Errors ("data"): no pixels, more than kMaxSide in a row or column, or another
/// number of values than 3 width height.
std::string encode_png(const Picture& picture);

/// Returns the orientation in an EXIF block. `tiff` are the bytes after `Exif\0\0`. Returns 1 if the block has no
/// orientation or is damaged.
int exif_orientation(std::string_view tiff);

/// Resamples the part `box` of the file's picture to side x side pixels. Each pixel is a mean of the pixels around it,
/// weighted by a triangle as wide as the reduction. This is the antialiased bilinear filter of Pillow and torchvision;
/// the results agree to within 1 (of 0 to 255).
Picture resample(const Picture& from, const Box& box, int64_t side);

/// Returns an upper bound of the pixels that resample() needs beyond each border of a part, in a picture in which
/// `length` pixels become `side`.
int64_t resample_margin(double length, int64_t side);

}  // namespace colossal::data
