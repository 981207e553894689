// The values of one column in one row group of a Parquet file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/base/input_file.h"
#include "colossal/data/parquet/page.h"
#include "colossal/formats/thrift.h"

namespace colossal::data {

/// A text, an integer or null. `text` is valid until the column's next value.
struct ParquetValue {
  enum class Kind { Null, Text, Number } kind = Kind::Null;
  std::string_view text{};
  int64_t number = 0;
};

/// A reader of the values of one column chunk.
///
/// Memory: a page and the column's dictionary, each at most 256 MiB unpacked.
/// Errors ("data") of all members: the data is damaged; its compression is not supported (page.h); its encoding
///                                 is neither PLAIN nor a dictionary; values are neither texts nor integers.
class ParquetColumn {
 public:
  /// `meta` is the ColumnMetaData of the chunk. If `is_optional` is true, values may be null.
  ParquetColumn(std::shared_ptr<const InputFile> file, const formats::ThriftValue& meta, bool is_optional);
  /// Returns the next value. It is an error if the chunk has no more.
  ParquetValue next();

 private:
  void read_page();
  void read_dictionary(const formats::ThriftValue& header, std::string_view packed, int64_t size);
  void begin_values(int64_t count, int64_t encoding);
  ParquetValue take_plain(std::string_view& bytes) const;

  std::shared_ptr<const InputFile> file_;
  int64_t type_, codec_, position_, end_;
  bool is_optional_;
  std::string dictionary_bytes_, page_;
  std::vector<ParquetValue> dictionary_;
  int64_t left_ = 0;  // number of values of the page that next() has not returned
  ParquetRuns present_, indices_;
  std::string_view plain_;
  bool uses_dictionary_ = false;
};

}  // namespace colossal::data
