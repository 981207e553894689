#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/pictures/picture.h"

namespace colossal::data {
namespace {

/// The state of libpng's callbacks. No object with a destructor is created after setjmp, because longjmp would not run
/// the destructor.
struct PngReading {
  std::string_view bytes;
  std::string error;
  Picture picture;
  bool is_too_large = false;
  int orientation = 1;
};

void read_png(png_structp png, png_bytep out, size_t count) {
  auto* reading = static_cast<PngReading*>(png_get_io_ptr(png));
  if (count > reading->bytes.size()) png_error(png, "cut short");
  std::copy_n(reading->bytes.data(), count, out);
  reading->bytes.remove_prefix(count);
}

[[noreturn]] void png_fails(png_structp png, png_const_charp message) {
  static_cast<PngReading*>(png_get_error_ptr(png))->error = message;
  png_longjmp(png, 1);
}

void png_warns(png_structp, png_const_charp) {}

/// Makes libpng convert any stored format to 8-bit RGB.
void ask_for_rgb(png_structp png) {
  png_set_strip_16(png);
  png_set_palette_to_rgb(png);
  png_set_expand_gray_1_2_4_to_8(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
}

/// Does all work that may jump back to setjmp. Returns false after an error.
bool read_rows(png_structp png, png_infop info, PngReading& reading) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_read_fn(png, &reading, read_png);
  png_set_user_limits(png, 0x7fffffff, 0x7fffffff);  // no limit here, because the size is checked below
  png_set_chunk_cache_max(png, 100);
  png_set_chunk_malloc_max(png, 8 << 20);
  png_read_info(png, info);
  const int64_t width = png_get_image_width(png, info), height = png_get_image_height(png, info);
  reading.picture.width = width;
  reading.picture.height = height;
  reading.is_too_large = width > kMaxPixels / height || std::max(width, height) > kMaxSide;
  if (reading.is_too_large) return false;
  // The size is checked before the allocation: one byte of a deflate stream expands to at most kMaxExpansion bytes.
  constexpr size_t kMaxExpansion = 1032;
  if (png_get_rowbytes(png, info) * height / kMaxExpansion > reading.bytes.size()) png_error(png, "cut short");
  ask_for_rgb(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  if (png_get_rowbytes(png, info) != static_cast<size_t>(width) * 3) png_error(png, "of an unknown kind");
  reading.picture.rgb.resize(width * height * 3);
  for (int pass = 0; pass < passes; ++pass)
    for (int64_t y = 0; y < height; ++y) png_read_row(png, reading.picture.rgb.data() + y * width * 3, nullptr);
  png_read_end(png, info);
  png_bytep exif = nullptr;
  png_uint_32 size = 0;
  if (png_get_eXIf_1(png, info, &size, &exif) != 0)
    reading.orientation = exif_orientation({reinterpret_cast<const char*>(exif), size});
  return true;
}

struct PngWriting {
  std::string bytes, error;
};

void write_png(png_structp png, png_bytep bytes, size_t count) {
  static_cast<PngWriting*>(png_get_io_ptr(png))->bytes.append(reinterpret_cast<const char*>(bytes), count);
}

void flush_png(png_structp) {}

[[noreturn]] void png_write_fails(png_structp png, png_const_charp message) {
  static_cast<PngWriting*>(png_get_error_ptr(png))->error = message;
  png_longjmp(png, 1);
}

/// Does all work that may jump back to setjmp. Returns false after an error.
bool write_rows(png_structp png, png_infop info, const Picture& picture, PngWriting& writing) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_write_fn(png, &writing, write_png, flush_png);
  png_set_IHDR(png, info, static_cast<png_uint_32>(picture.width), static_cast<png_uint_32>(picture.height), 8,
               PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  for (int64_t y = 0; y < picture.height; ++y) png_write_row(png, picture.rgb.data() + y * picture.width * 3);
  png_write_end(png, nullptr);
  return true;
}

}  // namespace

std::string encode_png(const Picture& picture) {
  require(picture.width > 0 && picture.height > 0 && std::max(picture.width, picture.height) <= kMaxSide, "data",
          "a picture must have 1 to ", kMaxSide, " pixels in a row and a column: got ", picture.width, " x ",
          picture.height);
  const auto values = static_cast<size_t>(picture.width * picture.height * 3);
  require(picture.rgb.size() == values, "data", "a picture of ", picture.width, " x ", picture.height,
          " pixels must have ", values, " values: got ", picture.rgb.size());
  PngWriting writing;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &writing, png_write_fails, png_warns);
  png_infop info = png != nullptr ? png_create_info_struct(png) : nullptr;
  const bool done = info != nullptr && write_rows(png, info, picture, writing);
  png_destroy_write_struct(&png, &info);
  require(done, "data", "a picture cannot be written as PNG: ", writing.error);
  return std::move(writing.bytes);
}

Picture decode_png(std::string_view bytes, const std::string& name, int& orientation) {
  PngReading reading{.bytes = bytes};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reading, png_fails, png_warns);
  png_infop info = png != nullptr ? png_create_info_struct(png) : nullptr;
  const bool done = info != nullptr && read_rows(png, info, reading);
  png_destroy_read_struct(&png, &info, nullptr);
  require(!reading.is_too_large, "data", name, " has ", reading.picture.width, " x ", reading.picture.height,
          " pixels, more than ", kMaxPixels, " or ", kMaxSide, " in a row or column");
  require(done, "data", name, " cannot be read as PNG: ", reading.error);
  orientation = reading.orientation;
  return std::move(reading.picture);
}

}  // namespace colossal::data
