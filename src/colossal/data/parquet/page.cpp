#include "colossal/data/parquet/page.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::data {
namespace {

constexpr int64_t kMaxPageBytes = 256 << 20;

[[noreturn]] void page_is_damaged() { throw Error("data", "a page is damaged or cut short; fetch the file again"); }

/// Takes a little-endian number of `count` bytes from the front of `bytes`.
uint32_t take_number(std::string_view& bytes, size_t count) {
  if (bytes.size() < count) page_is_damaged();
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  bytes.remove_prefix(count);
  return value;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 35; shift += 7) {
    const uint32_t next = take_number(bytes, 1);
    value |= static_cast<uint64_t>(next & 127) << shift;
    if (next < 128) return value;
  }
  page_is_damaged();
}

/// Unpacks Snappy: literals, and copies of earlier output. The format is described in
/// https://github.com/google/snappy/blob/main/format_description.txt.
void unpack_snappy(std::string_view packed, std::string& out) {
  if (take_varint(packed) != out.size()) page_is_damaged();
  size_t filled = 0;
  while (!packed.empty()) {
    const uint32_t tag = take_number(packed, 1), kind = tag & 3;
    size_t length = (tag >> 2) + 1, distance = 0;
    if (kind == 0) {
      if (length > 60) length = size_t{take_number(packed, length - 60)} + 1;
      if (length > packed.size() || length > out.size() - filled) page_is_damaged();
      std::copy_n(packed.data(), length, out.data() + filled);
      packed.remove_prefix(length);
    } else {
      if (kind == 1) length = ((tag >> 2) & 7) + 4;
      distance = kind == 1 ? (tag >> 5) << 8 | take_number(packed, 1) : take_number(packed, kind == 2 ? 2 : 4);
      if (distance == 0 || distance > filled || length > out.size() - filled) page_is_damaged();
      for (size_t i = filled; i < filled + length; ++i) out[i] = out[i - distance];  // the ranges may overlap
    }
    filled += length;
  }
  if (filled != out.size()) page_is_damaged();
}

void unpack_gzip(std::string_view packed, std::string& out) {
  z_stream stream{};
  constexpr int kGzipOrZlib = 32 + MAX_WBITS;
  require(inflateInit2(&stream, kGzipOrZlib) == Z_OK, "data", "no memory to unpack a page");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));  // zlib only reads from next_in
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int code = inflate(&stream, Z_FINISH);
  const bool is_whole = code == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  if (!is_whole) page_is_damaged();
}

}  // namespace

std::string unpack_page(std::string_view packed, int64_t codec, int64_t size) {
  constexpr int64_t kNone = 0, kSnappy = 1, kGzip = 2, kZstd = 6;
  require(codec == kNone || codec == kSnappy || codec == kGzip || codec == kZstd, "data", "compression codec number ",
          codec, " of pages is not supported; write the file with compression=\"zstd\", \"snappy\", \"gzip\" or none");
  require(size >= 0 && size <= kMaxPageBytes, "data", "a page has ", size, " bytes, more than ", kMaxPageBytes,
          "; write the file with smaller pages");
  if (codec == kNone) {
    if (static_cast<int64_t>(packed.size()) != size) page_is_damaged();
    return std::string(packed);
  }
  // The size is checked before the allocation: `most` is the largest number of bytes that one packed byte can expand
  // to.
  const int64_t most = codec == kSnappy ? 22 : codec == kGzip ? 1032 : 1 << 15;
  const uint64_t said = codec == kZstd ? ZSTD_getFrameContentSize(packed.data(), packed.size()) : size;
  const bool is_likely = said == static_cast<uint64_t>(size) || said == ZSTD_CONTENTSIZE_UNKNOWN;
  if (!is_likely || size / most > static_cast<int64_t>(packed.size())) page_is_damaged();
  std::string out(size, '\0');
  if (codec == kSnappy) unpack_snappy(packed, out);
  if (codec == kGzip) unpack_gzip(packed, out);
  if (codec == kZstd && ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size()) != out.size())
    page_is_damaged();
  return out;
}

ParquetRuns::ParquetRuns(std::string_view bytes, int width) : bytes_(bytes), width_(width) {
  if (width < 0 || width > 32) page_is_damaged();
}

void ParquetRuns::begin_run() {
  const uint64_t header = take_varint(bytes_);
  is_packed_ = (header & 1) != 0;
  if (is_packed_) {
    const uint64_t groups = header >> 1, held = std::min<uint64_t>(groups * width_, bytes_.size());
    packed_ = bytes_.substr(0, held);
    bytes_.remove_prefix(held);
    bit_ = 0;
    left_ = static_cast<int64_t>(width_ == 0 ? groups * 8 : held * 8 / width_);  // the last group may be cut
  } else {
    left_ = static_cast<int64_t>(header >> 1);
    value_ = take_number(bytes_, (width_ + 7) / 8);
  }
  if (left_ == 0) page_is_damaged();
}

uint32_t ParquetRuns::next() {
  if (left_ == 0) begin_run();
  --left_;
  if (!is_packed_) return value_;
  uint32_t value = 0;
  for (int i = 0; i < width_; ++i, ++bit_)
    value |= static_cast<uint32_t>(static_cast<uint8_t>(packed_[bit_ / 8]) >> (bit_ % 8) & 1) << i;
  return value;
}

}  // namespace colossal::data
