// The rows of a Parquet file as lines of JSON.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "colossal/base/input_file.h"
#include "colossal/data/parquet_column.h"
#include "colossal/data/record_lines.h"

namespace colossal::data {

/// Row n (from 1) is line n: an object of some columns, its texts, whole numbers and nulls. A position counts rows.
///
/// Columns are those that are neither lists nor structures. Pages are read when they are wanted: plain, or packed by
/// Snappy, gzip or Zstandard; of plain values or dictionaries, version 1 and 2; their checksums, where they have some,
/// are compared.
/// Memory: footer, and a page and a dictionary of each column that is read. Cost of a start: the rows before it in its
/// row group are read again.
/// Thread safety: one thread calls the members.
class ParquetRows final : public RecordLines {
 public:
  /// Without `columns` all that can be read.
  /// Errors ("file"): InputFile's. Errors ("data"), with the file's name: no Parquet file, damaged, encrypted, a column
  /// that is not there; ParquetColumn's.
  ParquetRows(const std::string& path, int64_t longest, LinePosition start, std::vector<std::string> columns);
  bool next(std::string& line) override;
  bool is_cut() const override { return is_cut_; }
  LinePosition position() const override { return {row_, row_}; }

 private:
  void read_footer();
  void choose_columns();
  void begin_group();
  void read_row(std::string& line);

  std::shared_ptr<const InputFile> file_;
  int64_t longest_;
  std::vector<std::string> names_;
  std::string footer_bytes_;
  ThriftValue footer_;
  std::vector<bool> are_optional_;  // of names_
  size_t group_ = 0;                // the next one
  int64_t row_ = 0, left_ = 0;      // rows before; of the group
  std::vector<ParquetColumn> columns_;
  bool is_cut_ = false;
};

}  // namespace colossal::data
