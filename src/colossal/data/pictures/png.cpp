#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/pictures/picture_header.h"
#include "colossal/text/unicode.h"

namespace colossal::data {
namespace {

/// A text chunk as it is stored.
struct StoredText {
  std::string keyword, text;
  bool is_utf8;  // otherwise Latin-1
};

/// The state of libpng's callbacks. No object with a destructor is created after setjmp, because longjmp would not run
/// the destructor.
struct PngReading {
  std::string_view bytes;
  std::string error;
  Picture picture;
  bool is_too_large = false;
  int orientation = 1;
  bool reads_texts = false;
  std::vector<StoredText> texts{};
  std::string text_damage{};  // the first warning about a text chunk
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

void png_warns(png_structp png, png_const_charp message) {
  auto* reading = static_cast<PngReading*>(png_get_error_ptr(png));
  for (const std::string_view chunk : {"tEXt: ", "zTXt: ", "iTXt: "})
    if (reading->text_damage.empty() && std::string_view(message).starts_with(chunk)) reading->text_damage = message;
}

/// Copies the text chunks of the file.
void copy_texts(png_structp png, png_infop info, PngReading& reading) {
  png_textp texts = nullptr;
  const int count = png_get_text(png, info, &texts, nullptr);
  for (int i = 0; i < count; ++i) {
    const bool is_international = texts[i].compression >= PNG_ITXT_COMPRESSION_NONE;
    const size_t length = is_international ? texts[i].itxt_length : texts[i].text_length;
    reading.texts.emplace_back(texts[i].key, std::string(texts[i].text, length), is_international);
  }
}

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
  if (reading.reads_texts) copy_texts(png, info, reading);
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

void png_write_warns(png_structp, png_const_charp) {}

[[noreturn]] void png_write_fails(png_structp png, png_const_charp message) {
  static_cast<PngWriting*>(png_get_error_ptr(png))->error = message;
  png_longjmp(png, 1);
}

/// Does all work that may jump back to setjmp. Returns false after an error.
bool write_rows(png_structp png, png_infop info, const Picture& picture, const std::vector<png_text>& texts,
                PngWriting& writing) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_write_fn(png, &writing, write_png, flush_png);
  png_set_IHDR(png, info, static_cast<png_uint_32>(picture.width), static_cast<png_uint_32>(picture.height), 8,
               PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_set_text(png, info, texts.data(), static_cast<int>(texts.size()));
  png_write_info(png, info);
  for (int64_t y = 0; y < picture.height; ++y) png_write_row(png, picture.rgb.data() + y * picture.width * 3);
  png_write_end(png, nullptr);
  return true;
}

bool is_printable(char c) { return c >= ' ' && c <= '~'; }

void check_text(const PngText& text) {
  const std::string& key = text.keyword;
  require(!key.empty() && key.size() <= 79 && std::all_of(key.begin(), key.end(), is_printable) && key.front() != ' ' &&
              key.back() != ' ' && key.find("  ") == std::string::npos,
          "data", "the keyword of a PNG's text must be 1 to 79 printable characters of ASCII without a space at its ",
          "start, its end or next to another: got \"", printable(key), "\"");
  require(text.text.size() <= kMaxPngTextBytes && text.text.find('\0') == std::string::npos && text::is_utf8(text.text),
          "data", "the text ", key, " of a PNG must be UTF-8 of at most ", kMaxPngTextBytes,
          " bytes without a zero byte: got ", text.text.size(), " bytes");
}

/// Returns libpng's form of the texts, which must outlive it.
std::vector<png_text> chunks_of(const std::vector<PngText>& texts) {
  require(texts.size() <= kMaxPngTexts, "data", "a PNG must have at most ", kMaxPngTexts, " texts: got ", texts.size());
  std::vector<png_text> chunks;
  for (const PngText& text : texts) {
    check_text(text);
    const bool is_ascii = std::all_of(text.text.begin(), text.text.end(), [](char c) { return (c & 0x80) == 0; });
    png_text chunk{};
    chunk.compression = is_ascii ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    chunk.key = const_cast<char*>(text.keyword.c_str());  // libpng copies it
    chunk.text = const_cast<char*>(text.text.c_str());
    chunk.text_length = text.text.size();
    chunks.push_back(chunk);
  }
  return chunks;
}

/// Returns Latin-1 as UTF-8.
std::string utf8_of(const std::string& latin) {
  std::string text;
  for (const char c : latin) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) text += static_cast<char>(0xC0 | byte >> 6);
    text += static_cast<char>(byte >= 0x80 ? 0x80 | (byte & 0x3F) : byte);
  }
  return text;
}

/// Reads a whole file. Errors: those of decode_png().
PngReading read_whole(std::string_view bytes, const std::string& name, bool reads_texts) {
  read_picture_header(bytes_of(bytes), name);  // libpng clears as many bytes as a chunk claims to have
  PngReading reading{.bytes = bytes, .reads_texts = reads_texts};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reading, png_fails, png_warns);
  png_infop info = png != nullptr ? png_create_info_struct(png) : nullptr;
  const bool done = info != nullptr && read_rows(png, info, reading);
  png_destroy_read_struct(&png, &info, nullptr);
  require(!reading.is_too_large, "data", name, " has ", reading.picture.width, " x ", reading.picture.height,
          " pixels, more than ", kMaxPixels, " or ", kMaxSide, " in a row or column");
  require(done, "data", name, " cannot be read as PNG: ", reading.error);
  return reading;
}

}  // namespace

std::string encode_png(const Picture& picture, const std::vector<PngText>& texts) {
  require(picture.width > 0 && picture.height > 0 && std::max(picture.width, picture.height) <= kMaxSide, "data",
          "a picture must have 1 to ", kMaxSide, " pixels in a row and a column: got ", picture.width, " x ",
          picture.height);
  const auto values = static_cast<size_t>(picture.width * picture.height * 3);
  require(picture.rgb.size() == values, "data", "a picture of ", picture.width, " x ", picture.height,
          " pixels must have ", values, " values: got ", picture.rgb.size());
  const std::vector<png_text> chunks = chunks_of(texts);
  PngWriting writing;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &writing, png_write_fails, png_write_warns);
  png_infop info = png != nullptr ? png_create_info_struct(png) : nullptr;
  const bool done = info != nullptr && write_rows(png, info, picture, chunks, writing);
  png_destroy_write_struct(&png, &info);
  require(done, "data", "a picture cannot be written as PNG: ", writing.error);
  return std::move(writing.bytes);
}

std::vector<PngText> read_png_texts(std::string_view bytes, const std::string& name) {
  require(bytes.starts_with("\x89PNG\r\n\x1a\n"), "data", name, " is not a PNG file");
  const PngReading reading = read_whole(bytes, name, true);
  require(reading.text_damage.empty(), "data", name, " has a damaged text: ", reading.text_damage);
  std::vector<PngText> texts;
  for (const StoredText& stored : reading.texts) {
    require(!stored.is_utf8 || text::is_utf8(stored.text), "data", name,
            " has a damaged text: ", printable(stored.keyword), " is not UTF-8");
    texts.push_back({utf8_of(stored.keyword), stored.is_utf8 ? stored.text : utf8_of(stored.text)});
  }
  return texts;
}

Picture decode_png(std::string_view bytes, const std::string& name, int& orientation) {
  PngReading reading = read_whole(bytes, name, false);
  orientation = reading.orientation;
  return std::move(reading.picture);
}

}  // namespace colossal::data
