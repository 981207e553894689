// The format, size and orientation of a picture, from the headers of its file. Nothing is decoded.
//
//   const auto file = InputFile::open("cat.jpg");
//   const data::PictureHeader header = data::read_picture_header(data::bytes_of(*file), file->path());
//   std::cout << header.upright_width() << " x " << header.upright_height();
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "colossal/base/input_file.h"

namespace colossal::data {

/// The formats that decode_picture() reads.
enum class PictureFormat { Png, Jpeg, Webp };

/// What the headers of a file say about its picture.
struct PictureHeader {
  PictureFormat format = PictureFormat::Png;
  int64_t width = 0, height = 0;  ///< pixels as they are stored
  int orientation = 1;            ///< EXIF orientation, 1 to 8

  /// Returns the size of the picture that decode_picture() returns.
  int64_t upright_width() const { return orientation >= 5 ? height : width; }
  int64_t upright_height() const { return orientation >= 5 ? width : height; }
};

/// The bytes of a file, which are read in pieces.
struct PictureBytes {
  int64_t size = 0;
  /// Copies bytes [begin, begin + count) to `out`; the range is within `size`.
  std::function<void(int64_t begin, int64_t count, char* out)> read;
};

/// Returns the `size` bytes of a file from `begin`. The file must outlive the result.
PictureBytes bytes_of(const InputFile& file, int64_t begin, int64_t size);

/// Returns all bytes of a file. The file must outlive the result.
inline PictureBytes bytes_of(const InputFile& file) { return bytes_of(file, 0, file.size()); }

/// Returns bytes in memory, which must outlive the result.
PictureBytes bytes_of(std::string_view bytes);

/// Reads the headers of a PNG, JPEG or WebP file; the bytes decide the format. Size and orientation are those that
/// decode_picture() finds in an undamaged file.
///
/// Errors ("data"), with the file's name: the bytes are of none of these formats, or a header is damaged. A PNG or WebP
/// file ends within a chunk, or a JPEG before its first scan; other damage of pixels is not found. The picture has more
/// than kMaxPixels or a side above kMaxSide. An animation (WebP), and a JPEG that is lossless or hierarchical.
/// Cost: reads pieces of 512 bytes: one or two of most files, one a chunk of a PNG or WebP file. Memory: one piece, and
///       an EXIF block.
PictureHeader read_picture_header(const PictureBytes& bytes, const std::string& name);

/// Returns true if this build decodes WebP, because libwebp was there when it was made.
bool reads_webp();

/// Checks that this build decodes the picture's format. Errors ("data"), with the file's name and the package that is
/// missing.
void require_decoder(const PictureHeader& header, const std::string& name);

}  // namespace colossal::data
