#include "colossal/data/pictures/picture_header.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/pictures/picture.h"

namespace colossal::data {
namespace {

constexpr std::string_view kExifStart{"Exif\0\0", 6};
constexpr int64_t kMaxExifBytes = 8 << 20;  // libpng ignores larger chunks

/// A file's bytes one by one, held a piece at a time.
class HeaderBytes {
 public:
  HeaderBytes(const PictureBytes& bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  int64_t size() const { return bytes_.size; }
  const std::string& name() const { return name_; }
  [[noreturn]] void is_cut_short() const { throw Error("data", concat(name_, " is cut short")); }
  [[noreturn]] void is_damaged(const char* what) const { throw Error("data", concat(name_, " is damaged: ", what)); }

  uint8_t at(int64_t place) {
    if (place < begin_ || place >= begin_ + static_cast<int64_t>(piece_.size())) load(place);
    return static_cast<uint8_t>(piece_[place - begin_]);
  }
  uint32_t big(int64_t place, int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) value = value << 8 | at(place + i);
    return value;
  }
  uint32_t little(int64_t place, int count) {
    uint32_t value = 0;
    for (int i = count - 1; i >= 0; --i) value = value << 8 | at(place + i);
    return value;
  }
  bool holds(int64_t place, std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      const int64_t here = place + static_cast<int64_t>(i);
      if (here >= size() || at(here) != static_cast<uint8_t>(text[i])) return false;
    }
    return true;
  }
  std::string part(int64_t place, int64_t count) {
    if (count > size() - place) is_cut_short();
    std::string part(count, '\0');
    bytes_.read(place, count, part.data());
    return part;
  }

 private:
  void load(int64_t place) {
    constexpr int64_t kStep = 512;
    if (place < 0 || place >= size()) is_cut_short();
    piece_.resize(std::min(kStep, size() - place));
    bytes_.read(place, static_cast<int64_t>(piece_.size()), piece_.data());
    begin_ = place;
  }

  const PictureBytes& bytes_;
  const std::string& name_;
  std::vector<char> piece_;
  int64_t begin_ = 0;
};

int orientation_of_block(std::string_view block) {
  if (block.starts_with(kExifStart)) block.remove_prefix(kExifStart.size());
  return exif_orientation(block);
}

/// Reads PNG (PNG specification, section 5). The orientation may follow the pixels, so all chunks are passed.
PictureHeader png_header(HeaderBytes& file) {
  constexpr int64_t kFirst = 8, kBeside = 12;  // length, type and checksum of a chunk
  if (file.size() < kFirst + kBeside + 13) file.is_cut_short();
  if (file.big(kFirst, 4) != 13 || !file.holds(kFirst + 4, "IHDR")) file.is_damaged("its first chunk is not IHDR");
  PictureHeader header{PictureFormat::Png, file.big(16, 4), file.big(20, 4)};
  bool has_exif = false;
  for (int64_t chunk = kFirst;;) {
    const int64_t length = file.big(chunk, 4);
    if (length > file.size() - chunk - kBeside) file.is_cut_short();
    if (file.holds(chunk + 4, "IEND")) return header;
    if (file.holds(chunk + 4, "eXIf") && !has_exif && length <= kMaxExifBytes) {
      const std::string block = file.part(chunk + 4, length + 4);  // with its type, which the checksum covers
      const auto sum = static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(block.data()), block.size()));
      has_exif = sum == file.big(chunk + 8 + length, 4);  // libpng ignores a damaged one
      if (has_exif) header.orientation = exif_orientation(std::string_view(block).substr(4));
    }
    chunk += length + kBeside;
  }
}

/// Reads JPEG up to its first scan (ITU-T T.81, annex B).
PictureHeader jpeg_header(HeaderBytes& file) {
  constexpr int kExif = 0xE1, kScan = 0xDA, kEnd = 0xD9, kNone = 0x01;
  const auto is_size = [](int m) { return m >= 0xC0 && m <= 0xCF && m != 0xC4 && m != 0xC8 && m != 0xCC; };
  const auto is_read = [](int m) { return (m >= 0xC0 && m <= 0xC2) || m == 0xC9 || m == 0xCA; };
  PictureHeader header{PictureFormat::Jpeg};
  bool has_size = false, has_exif = false;
  for (int64_t place = 2;;) {
    while (file.at(place) != 0xFF) ++place;  // libjpeg, too, passes bytes between markers
    while (file.at(place) == 0xFF) ++place;
    const int marker = file.at(place++);
    if (marker == 0 || marker == kNone || (marker >= 0xD0 && marker <= 0xD7)) continue;
    if (marker == kEnd || (marker == kScan && !has_size)) file.is_damaged("it has no size before its first scan");
    if (marker == kScan) return header;
    const int64_t length = file.big(place, 2);
    if (length < 2) file.is_damaged("a segment is too short");
    if (is_size(marker) && !has_size) {
      if (!is_read(marker)) file.is_damaged("it is of a kind that is not read, such as lossless JPEG");
      header.height = file.big(place + 3, 2);
      header.width = file.big(place + 5, 2);
      has_size = true;
    }
    if (marker == kExif && !has_exif && file.holds(place + 2, kExifStart)) {
      has_exif = true;
      header.orientation = orientation_of_block(file.part(place + 2, length - 2));
    }
    place += length;
  }
}

/// Returns the orientation in the EXIF chunk of a WebP file, which may follow the pixels. All chunks are passed.
int webp_orientation(HeaderBytes& file, int64_t end) {
  int orientation = 1;
  bool has_exif = false;
  for (int64_t chunk = 12; end - chunk >= 8;) {
    const int64_t length = file.little(chunk + 4, 4);
    if (length > end - chunk - 8) file.is_cut_short();
    if (file.holds(chunk, "EXIF") && !has_exif && length <= kMaxExifBytes) {
      has_exif = true;
      orientation = orientation_of_block(file.part(chunk + 8, length));
    }
    chunk += 8 + length + length % 2;
  }
  return orientation;
}

/// Reads WebP: a RIFF file whose first chunk is one of three (RFC 9649, sections 2.5 to 2.7).
PictureHeader webp_header(HeaderBytes& file) {
  constexpr int64_t kFirst = 12, kStart = 20;  // the first chunk, and its content
  const int64_t end = int64_t{file.little(4, 4)} + 8;
  if (end > file.size()) file.is_cut_short();
  PictureHeader header{PictureFormat::Webp};
  if (file.holds(kFirst, "VP8X")) {
    constexpr int kAnimation = 2;
    if ((file.at(kStart) & kAnimation) != 0)
      throw Error("data", concat(file.name(), " is an animation; store its pictures one by one"));
    header.width = int64_t{file.little(kStart + 4, 3)} + 1;
    header.height = int64_t{file.little(kStart + 7, 3)} + 1;
    header.orientation = webp_orientation(file, end);
  } else if (file.holds(kFirst, "VP8L")) {
    if (file.at(kStart) != 0x2F) file.is_damaged("its pixels have no signature");
    const uint32_t sizes = file.little(kStart + 1, 4);
    header.width = (sizes & 0x3FFF) + 1;
    header.height = (sizes >> 14 & 0x3FFF) + 1;
  } else if (file.holds(kFirst, "VP8 ")) {
    if (!file.holds(kStart + 3, "\x9d\x01\x2a")) file.is_damaged("its pixels have no signature");
    header.width = file.little(kStart + 6, 2) & 0x3FFF;
    header.height = file.little(kStart + 8, 2) & 0x3FFF;
  } else {
    file.is_damaged("its first chunk is unknown");
  }
  return header;
}

}  // namespace

PictureBytes bytes_of(const InputFile& file, int64_t begin, int64_t size) {
  return {size, [&file, begin](int64_t from, int64_t count, char* out) { file.read(begin + from, count, out); }};
}

PictureBytes bytes_of(std::string_view bytes) {
  return {static_cast<int64_t>(bytes.size()),
          [bytes](int64_t from, int64_t count, char* out) { std::copy_n(bytes.data() + from, count, out); }};
}

PictureHeader read_picture_header(const PictureBytes& bytes, const std::string& name) {
  HeaderBytes file(bytes, name);
  const bool is_png = file.holds(0, "\x89PNG\r\n\x1a\n"), is_jpeg = file.holds(0, "\xff\xd8");
  const bool is_webp = file.holds(0, "RIFF") && file.holds(8, "WEBP");
  require(is_png || is_jpeg || is_webp, "data", name, " is neither a PNG nor a JPEG nor a WebP file");
  const PictureHeader header = is_png ? png_header(file) : is_jpeg ? jpeg_header(file) : webp_header(file);
  if (header.width < 1 || header.height < 1) file.is_damaged("it has no pixels");
  require(std::max(header.width, header.height) <= kMaxSide && header.width <= kMaxPixels / header.height, "data", name,
          " has ", header.width, " x ", header.height, " pixels, more than ", kMaxPixels, " or ", kMaxSide,
          " in a row or column");
  return header;
}

void require_decoder(const PictureHeader& header, const std::string& name) {
  require(header.format != PictureFormat::Webp || reads_webp(), "data", name,
          " is a WebP file, which this build does not read; install libwebp-dev and build again, or convert the "
          "pictures to PNG");
}

}  // namespace colossal::data
