// Pictures in PNG, JPEG and WebP files. The decoders accept files from untrusted sources.
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

/// The request of a caller: a part of the picture, to be resampled to `width` x `height` pixels. Crop{box, side} asks
/// for a square.
struct Crop {
  Box box;
  int64_t width;
  int64_t height = width;
};

/// A text that a PNG file holds in addition to its pixels.
struct PngText {
  std::string keyword{};  ///< the kind of text: "parameters", "Author"
  std::string text{};     ///< UTF-8
  bool operator==(const PngText&) const = default;
};

/// A function that returns the requested part of an upright picture of a given size. decode_picture() calls it once for
/// every picture that it returns, for all formats.
using CropFunction = std::function<Crop(int64_t width, int64_t height)>;

/// Decodes the picture in the bytes of a file and turns it by its EXIF orientation. The bytes decide the format; the
/// file's name does not.
///
/// The result is the same as Pillow's convert("RGB"). Gray, palettes and 1 to 16 bits per sample become 8-bit RGB (the
/// high byte). CMYK becomes (255 - C) (255 - K) / 255 and so on. Alpha is dropped, and colour profiles are ignored.
///
/// If `crop` requests a part, at least the pixels that resample() needs for it are decoded. A JPEG is then decoded at
/// 1/2, 1/4 or 1/8 of its size if the part still has at least the requested width and height; the smallest such size is
/// used. This is much cheaper than averaging the full picture, and close to it, but not equal. A PNG or WebP file is
/// always decoded in full. Without `crop`, all pixels of the full picture are decoded.
/// Errors ("data"), with the file's name: the bytes are neither PNG nor JPEG nor WebP, or are damaged or cut short. The
/// picture has more than kMaxPixels or a side above kMaxSide (found before the allocation), or more than 500 scans. A
/// JPEG counts as damaged if libjpeg finds invalid codes or markers within its scans. WebP: an animation, and any file
/// if this build has no libwebp.
Picture decode_picture(std::string_view bytes, const std::string& name, const CropFunction& crop = {});

/// Decodes one of the formats like decode_picture(), but does not turn the picture. `orientation` is set to the EXIF
/// orientation, 1 to 8.
Picture decode_png(std::string_view bytes, const std::string& name, int& orientation);
Picture decode_jpeg(std::string_view bytes, const std::string& name, const CropFunction& crop, int& orientation);
Picture decode_webp(std::string_view bytes, const std::string& name, int& orientation);

constexpr size_t kMaxPngTexts = 64;                   ///< maximum texts that encode_png() writes
constexpr size_t kMaxPngTextBytes = size_t{1} << 20;  ///< maximum bytes of each

/// Returns the picture as a PNG file with these texts, in their order and before the pixels. A text of ASCII becomes a
/// tEXt chunk, which every program reads, any other an iTXt chunk in UTF-8 (PNG specification, section 11.3.4).
/// Errors ("data"): no pixels, more than kMaxSide in a row or column, or another number of values than 3 width height.
/// A keyword that is not 1 to 79 printable characters of ASCII, or has a space at its start, its end or next to another
/// space. A text with a zero byte, that is not UTF-8, or of more than kMaxPngTextBytes; more than kMaxPngTexts texts.
std::string encode_png(const Picture& picture, const std::vector<PngText>& texts = {});

/// Returns the texts in the bytes of a PNG file in UTF-8, in the order of the file: of its tEXt and zTXt chunks, which
/// are Latin-1, and of its iTXt chunks.
/// Errors ("data"), with the file's name: errors of decode_picture() for a PNG, and a text chunk that is damaged.
/// decode_picture() ignores such damage.
/// Cost: that of decoding the picture, because texts may follow the pixels.
std::vector<PngText> read_png_texts(std::string_view bytes, const std::string& name);

/// Returns the orientation in an EXIF block. `tiff` are the bytes after `Exif\0\0`. Returns 1 if the block has no
/// orientation or is damaged.
int exif_orientation(std::string_view tiff);

/// Returns the picture turned from an EXIF orientation, 1 to 8, to orientation 1.
Picture turn(const Picture& picture, int orientation);

/// Resamples the part `box` of the file's picture to width x height pixels. Each pixel is a mean of the pixels around
/// it, weighted by a triangle that in each direction is as wide as the reduction. This is the antialiased bilinear
/// filter of Pillow and torchvision; the results agree to within 1 (of 0 to 255).
Picture resample(const Picture& from, const Box& box, int64_t width, int64_t height);

/// Resamples it with the antialiased bicubic filter of Pillow (a = -1/2), whose weights may be negative. Pillow rounds
/// the rows before it resamples the columns: two calls, one for each direction, agree with it to within 1.
Picture resample_cubic(const Picture& from, const Box& box, int64_t width, int64_t height);

/// Resamples the part `box` of the file's picture to a square of side x side pixels.
inline Picture resample(const Picture& from, const Box& box, int64_t side) { return resample(from, box, side, side); }

/// Returns an upper bound of the pixels that resample() needs beyond each border of a part, in a picture in which
/// `length` pixels of a row or column become `count`.
int64_t resample_margin(double length, int64_t count);

}  // namespace colossal::data
