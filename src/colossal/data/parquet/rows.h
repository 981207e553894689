// The rows of a Parquet file as lines of JSON.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "colossal/base/input_file.h"
#include "colossal/data/parquet/column.h"
#include "colossal/data/parquet/footer.h"
#include "colossal/data/streams/record_lines.h"

namespace colossal::data {

/// A reader of the rows of a Parquet file. Row n (from 1) is line n, a JSON object of the columns that are read: texts,
/// integers and nulls. A position counts rows.
///
/// Only columns that are neither lists nor structures can be read. Pages are read when they are needed. They may be
/// uncompressed, or packed by Snappy, gzip or Zstandard. They have plain or dictionary values, in page version 1 or 2.
/// If a page has a checksum, it is verified.
/// Memory: the footer, and a page and a dictionary of each column that is read.
/// Cost:   a start inside a row group reads the rows of the group before it again.
/// Thread safety: one thread calls the members.
class ParquetRows final : public RecordLines {
 public:
  /// Opens a file at row `start`. If `columns` is empty, all columns that can be read are read. A row whose texts have
  /// more than `longest` bytes is cut.
  /// Errors ("file"): the same as InputFile. Errors ("data"), with the file's name: the file is no Parquet file, is
  /// damaged or encrypted, or lacks a column; `start` is after its end; the same as ParquetColumn.
  ParquetRows(const std::string& path, int64_t longest, LinePosition start, std::vector<std::string> columns);
  bool next(std::string& line) override;
  bool is_cut() const override { return is_cut_; }
  LinePosition position() const override { return {row_, row_}; }

 private:
  void choose_columns();
  void begin_group();
  void read_row(std::string& line);

  std::shared_ptr<const InputFile> file_;
  int64_t longest_;
  std::vector<std::string> names_;
  std::unique_ptr<const ParquetFooter> footer_;
  std::vector<int> levels_;     // ParquetLeaf::levels of each of names_
  size_t group_ = 0;            // the next row group
  int64_t row_ = 0, left_ = 0;  // the number of rows read, and of rows left in the group
  std::vector<ParquetColumn> columns_;
  bool is_cut_ = false;
};

}  // namespace colossal::data
