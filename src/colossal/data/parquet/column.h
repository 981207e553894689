// The values of one column in one row group of a Parquet file, and its pages: their compression, and the encoding of
// levels and dictionary indices.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/base/input_file.h"
#include "colossal/formats/thrift.h"

namespace colossal::data {

/// Returns the unpacked content of a page, which has `size` bytes. `codec` is 0 (none), 1 (Snappy), 2 (gzip) or 6
/// (Zstandard).
/// Errors ("data"): another codec, damaged data, another size than `size`, a size of more than 256 MiB.
std::string unpack_page(std::string_view packed, int64_t codec, int64_t size);

/// A reader of numbers of `width` bits, in Parquet's hybrid encoding: runs of one number (RLE) and bit-packed numbers.
class ParquetRuns {
 public:
  ParquetRuns() = default;
  /// `bytes` must outlive the reader. Errors ("data"): a width below 0 or above 32.
  ParquetRuns(std::string_view bytes, int width);
  /// Returns the next number. Errors ("data"): there is none.
  uint32_t next();

 private:
  void begin_run();
  std::string_view bytes_, packed_;
  int width_ = 0;
  int64_t left_ = 0, bit_ = 0;
  bool is_packed_ = false;
  uint32_t value_ = 0;
};

/// A text, an integer or null. `text` is valid until the column's next value.
struct ParquetValue {
  enum class Kind { Null, Text, Number } kind = Kind::Null;
  std::string_view text{};
  int64_t number = 0;
};

/// A part of a file that is unpacked as a whole: a page of values or a dictionary.
struct ParquetBlock {
  int64_t position = 0, packed_bytes = 0;  ///< its bytes in the file
  int64_t bytes = 0, codec = 0;            ///< as in unpack_page()
  bool operator==(const ParquetBlock&) const = default;
};

/// Returns the unpacked content of a block. Errors: the same as InputFile::read() and unpack_page().
std::string read_block(const InputFile& file, const ParquetBlock& block);

/// The place of a text: `count` bytes from `offset` of an unpacked block.
struct ParquetPlace {
  ParquetBlock block;
  int64_t offset = 0, count = 0;
};

/// A reader of the values of one column chunk.
///
/// Memory: a page and the column's dictionary, each at most 256 MiB unpacked.
/// Errors ("data") of all members: the data is damaged; its compression is not supported (unpack_page()); its encoding
///                                 is neither PLAIN nor a dictionary; values are neither texts nor integers.
class ParquetColumn {
 public:
  /// `meta` is the ColumnMetaData of the chunk, and `levels` is ParquetLeaf::levels: with 0 no value is null. A value
  /// is null if it, or a structure that it is in, is null. The column must not be in a list.
  ParquetColumn(std::shared_ptr<const InputFile> file, const formats::ThriftValue& meta, int levels);
  /// Returns the next value. It is an error if the chunk has no more.
  ParquetValue next();
  /// Returns the place of the text that next() returned last, for a later read_block().
  ParquetPlace place() const;

 private:
  void read_page();
  void read_dictionary(const formats::ThriftValue& header, std::string_view packed, int64_t size);
  void begin_values(int64_t count, int64_t encoding);
  ParquetValue take_plain(std::string_view& bytes) const;
  ParquetRuns take_levels(std::string_view bytes) const;

  std::shared_ptr<const InputFile> file_;
  int64_t type_, codec_, position_, end_;
  int levels_;
  std::string dictionary_bytes_, page_;
  ParquetBlock dictionary_block_, page_block_;
  int64_t before_block_ = 0;  // bytes of page_ that are stored before page_block_
  std::vector<ParquetValue> dictionary_;
  int64_t left_ = 0;  // number of values of the page that next() has not returned
  ParquetRuns present_, indices_;
  std::string_view plain_, last_;
  bool uses_dictionary_ = false;
};

}  // namespace colossal::data
