#include "colossal/data/parquet/column.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cstring>

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

constexpr int64_t kInt32 = 1, kInt64 = 2, kByteArray = 6;                // types
constexpr int64_t kDataPage = 0, kDictionaryPage = 2, kDataPageV2 = 3;   // kinds of pages
constexpr int64_t kPlain = 0, kPlainDictionary = 2, kRleDictionary = 8;  // encodings
// The numbers of fields in ColumnMetaData, PageHeader and the headers within it, from parquet.thrift.
constexpr int kType = 1, kCodec = 4, kPackedSize = 7, kFirstDataPage = 9, kFirstDictionaryPage = 11;
constexpr int kPageKind = 1, kPageSize = 2, kPagePackedSize = 3, kPageSum = 4, kOfData = 5, kOfDictionary = 7,
              kOfDataV2 = 8;

[[noreturn]] void column_is_damaged(const char* what) {
  throw Error("data", concat("a column is damaged (", what, "); fetch the file again"));
}

uint32_t take_length(std::string_view& bytes) {
  uint32_t length = 0;
  if (bytes.size() < sizeof length) column_is_damaged("a page ends within a value");
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes.remove_prefix(sizeof length);
  if (length > bytes.size()) column_is_damaged("a page ends within a value");
  return length;
}

std::string_view take_bytes(std::string_view& bytes, uint64_t count) {
  if (count > bytes.size()) column_is_damaged("a page ends within a value");
  const std::string_view taken = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return taken;
}

const formats::ThriftValue& part_of(const formats::ThriftValue& header, int field) {
  const formats::ThriftValue* part = header.find(field);
  if (part == nullptr) column_is_damaged("a page has no header of its kind");
  return *part;
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

std::string read_block(const InputFile& file, const ParquetBlock& block) {
  std::string packed(block.packed_bytes, '\0');
  file.read(block.position, block.packed_bytes, packed.data());
  return unpack_page(packed, block.codec, block.bytes);
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

ParquetColumn::ParquetColumn(std::shared_ptr<const InputFile> file, const formats::ThriftValue& meta, int levels)
    : file_(std::move(file)), type_(meta.number_of(kType)), codec_(meta.number_of(kCodec)), levels_(levels) {
  const int64_t first = meta.number_of(kFirstDataPage), dictionary = meta.number_of(kFirstDictionaryPage, 0);
  const int64_t size = meta.number_of(kPackedSize);
  position_ = dictionary > 0 ? std::min(first, dictionary) : first;
  const bool lies_inside =
      position_ >= 0 && position_ <= file_->size() && size >= 0 && size <= file_->size() - position_;
  if (!lies_inside) column_is_damaged("it is outside of the file");
  end_ = position_ + size;
  require(type_ == kByteArray || type_ == kInt32 || type_ == kInt64, "data",
          "a column holds neither texts nor whole numbers (type ", type_, "); name others in [data]");
}

ParquetValue ParquetColumn::next() {
  while (left_ == 0) read_page();
  --left_;
  if (levels_ > 0 && present_.next() < static_cast<uint32_t>(levels_)) return {};
  ParquetValue value;
  if (uses_dictionary_) {
    const uint32_t index = indices_.next();
    if (index >= dictionary_.size()) column_is_damaged("a value is not in the dictionary");
    value = dictionary_[index];
  } else {
    value = take_plain(plain_);
  }
  last_ = value.text;
  return value;
}

ParquetPlace ParquetColumn::place() const {
  const auto count = static_cast<int64_t>(last_.size());
  if (uses_dictionary_) return {dictionary_block_, last_.data() - dictionary_bytes_.data(), count};
  return {page_block_, last_.data() - page_.data() - before_block_, count};
}

ParquetRuns ParquetColumn::take_levels(std::string_view bytes) const {
  return {bytes, static_cast<int>(std::bit_width(static_cast<unsigned>(levels_)))};
}

ParquetValue ParquetColumn::take_plain(std::string_view& bytes) const {
  ParquetValue value{.kind = type_ == kByteArray ? ParquetValue::Kind::Text : ParquetValue::Kind::Number};
  if (type_ == kByteArray) {
    value.text = take_bytes(bytes, take_length(bytes));
  } else if (type_ == kInt32) {
    int32_t number = 0;
    std::memcpy(&number, take_bytes(bytes, sizeof number).data(), sizeof number);
    value.number = number;
  } else {
    std::memcpy(&value.number, take_bytes(bytes, sizeof value.number).data(), sizeof value.number);
  }
  return value;
}

void ParquetColumn::read_page() {
  if (position_ >= end_) column_is_damaged("it has fewer values than its row group has rows");
  // A header has a few bytes, so a small piece is tried first. Statistics of long texts make headers longer.
  formats::ThriftValue header;
  std::string bytes;
  for (int64_t piece = 1 << 12;; piece *= 64) {
    const int64_t count = std::min(piece, end_ - position_);
    bytes.resize(count);
    file_->read(position_, count, bytes.data());
    std::string_view rest = bytes;
    try {
      header = formats::read_thrift(rest);
      position_ += count - static_cast<int64_t>(rest.size());
      break;
    } catch (const Error&) {
      if (count == end_ - position_ || piece > (1 << 24)) throw;
    }
  }
  const int64_t kind = header.number_of(kPageKind), size = header.number_of(kPageSize),
                packed_size = header.number_of(kPagePackedSize);
  if (packed_size < 0 || packed_size > end_ - position_) column_is_damaged("a page is outside of it");
  std::string body(packed_size, '\0');
  const ParquetBlock block{position_, packed_size, size, codec_};
  file_->read(position_, packed_size, body.data());
  position_ += packed_size;
  if (const formats::ThriftValue* sum = header.find(kPageSum)) {
    const auto found = static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), body.size()));
    if (static_cast<uint32_t>(sum->number) != found) column_is_damaged("the checksum of a page differs");
  }
  if (kind == kDictionaryPage) {
    read_dictionary(part_of(header, kOfDictionary), body, size);
    dictionary_block_ = block;
    return;
  }
  if (kind == kDataPage) {
    const formats::ThriftValue& of = part_of(header, kOfData);
    page_ = unpack_page(body, codec_, size);
    page_block_ = block;
    before_block_ = 0;
    plain_ = page_;
    if (levels_ > 0) present_ = take_levels(take_bytes(plain_, take_length(plain_)));
    begin_values(of.number_of(1), of.number_of(2));
  } else if (kind == kDataPageV2) {
    const formats::ThriftValue& of = part_of(header, kOfDataV2);
    const int64_t levels = of.number_of(5), repetitions = of.number_of(6);
    if (levels < 0 || repetitions < 0 || levels > packed_size || repetitions > packed_size - levels)
      column_is_damaged("a page ends within its levels");
    const bool is_packed = of.number_of(7, 1) != 0;
    const int64_t unpacked = repetitions + levels;
    page_block_ = {block.position + unpacked, packed_size - unpacked, size - unpacked, is_packed ? codec_ : 0};
    page_ = body.substr(repetitions, levels) +
            unpack_page(std::string_view(body).substr(unpacked), page_block_.codec, page_block_.bytes);
    before_block_ = levels;
    plain_ = page_;
    present_ = take_levels(take_bytes(plain_, levels));
    begin_values(of.number_of(1), of.number_of(4));
  }
}

void ParquetColumn::read_dictionary(const formats::ThriftValue& header, std::string_view packed, int64_t size) {
  dictionary_bytes_ = unpack_page(packed, codec_, size);
  dictionary_.clear();
  std::string_view rest = dictionary_bytes_;
  for (int64_t i = header.number_of(1); i > 0; --i) dictionary_.push_back(take_plain(rest));
}

void ParquetColumn::begin_values(int64_t count, int64_t encoding) {
  require(encoding == kPlain || encoding == kPlainDictionary || encoding == kRleDictionary, "data", "encoding number ",
          encoding,
          " of values is not supported; write the file with plain values or dictionaries, as pyarrow does by default");
  if (count < 0) column_is_damaged("a page of a negative size");
  left_ = count;
  uses_dictionary_ = encoding != kPlain;
  if (!uses_dictionary_) return;
  const int width = plain_.empty() ? 0 : static_cast<uint8_t>(plain_[0]);
  indices_ = ParquetRuns(plain_.substr(plain_.empty() ? 0 : 1), width);
}

}  // namespace colossal::data
