// The footer of a Parquet file: its columns and the places of their parts.
//
//   const data::ParquetFooter footer(*file);
//   for (const data::ParquetLeaf& leaf : footer.leaves()) std::cout << leaf.name() << "\n";   // text, image.bytes
#pragma once
#include <string>
#include <vector>

#include "colossal/base/input_file.h"
#include "colossal/formats/thrift.h"

namespace colossal::data {

/// A column of values: a top-level column, or a member of structures.
struct ParquetLeaf {
  std::vector<std::string> path;  ///< names from the top-level column inwards
  int64_t type = -1;              ///< physical type of parquet.thrift: 1 and 2 are integers, 6 byte strings; -1 = none
  int levels = 0;                 ///< how many of the column and its structures may be null
  bool is_list = false;           ///< true = lies in a list or is one, so that rows do not have one value each
  bool is_text = false;           ///< true = byte strings that the writer declared to be UTF-8

  std::string name() const;  ///< the path joined by points
};

/// The footer of one file.
/// Memory: the footer (at most 16 MiB in the file), as ThriftValues.
/// Thread safety: const members may be called from several threads.
class ParquetFooter {
 public:
  /// Errors ("data"), without the file's name: the file is no Parquet file, is cut short, damaged or encrypted.
  explicit ParquetFooter(const InputFile& file);
  ParquetFooter(const ParquetFooter&) = delete;  // the values point into bytes_
  ParquetFooter& operator=(const ParquetFooter&) = delete;

  /// Returns the columns that hold values, in the order of the file.
  const std::vector<ParquetLeaf>& leaves() const { return leaves_; }
  /// Returns the number of row groups.
  size_t groups() const { return groups_->size(); }
  /// Returns the number of rows of a group. Errors ("data"): the footer is damaged.
  int64_t rows(size_t group) const;
  /// Returns the ColumnMetaData of a column in a group, valid as long as the footer. Errors ("data"): the group has no
  /// such column.
  const formats::ThriftValue& chunk(size_t group, const std::vector<std::string>& path) const;

 private:
  void read_leaves();
  std::string bytes_;
  formats::ThriftValue root_;
  const std::vector<formats::ThriftValue>* groups_ = nullptr;
  std::vector<ParquetLeaf> leaves_;
};

}  // namespace colossal::data
