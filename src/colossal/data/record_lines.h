// The records of one file, a line each, whatever the file's format.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace colossal::data {

/// Where a line begins: `offset` bytes into the unpacked content (of Parquet: rows), behind `lines` others.
struct LinePosition {
  int64_t offset = 0, lines = 0;
  bool operator==(const LinePosition&) const = default;
};

/// Thread safety: one thread calls the members.
class RecordLines {
 public:
  /// Opens a .parquet by its rows, with these columns only (ParquetRows), and any other file by its lines (LineReader).
  /// Errors: those of the two classes.
  static std::unique_ptr<RecordLines> open(const std::string& path, int64_t longest, LinePosition start,
                                           const std::vector<std::string>& columns);
  virtual ~RecordLines() = default;
  /// Whether there is another line, then in `line`; of one of more than `longest` bytes, which is_cut() tells, perhaps
  /// the beginning. Errors ("data"): what cannot be read, after the lines before it.
  virtual bool next(std::string& line) = 0;
  virtual bool is_cut() const = 0;
  /// Position of the line that the next call of next() reads.
  virtual LinePosition position() const = 0;
};

}  // namespace colossal::data
