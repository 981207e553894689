// The records of one file, one line each, for any of the file formats. The lines of a file, which may be packed, are
// read here.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/data/streams/unpacked_file.h"

namespace colossal::data {

/// The position at which a line begins: `offset` bytes into the unpacked content (rows of a Parquet file), after
/// `lines` other lines.
struct LinePosition {
  int64_t offset = 0, lines = 0;
  bool operator==(const LinePosition&) const = default;
};

/// A reader of the lines of a file.
/// Thread safety: one thread calls the members.
class RecordLines {
 public:
  /// Opens a file in the format that its name ends in (record_formats()), and any other file as lines (LineReader).
  /// Empty `columns` = all. `longest` is the maximum number of bytes of a line, and `start` the first line to read.
  /// Errors: the same as the class of the format.
  static std::unique_ptr<RecordLines> open(const std::string& path, int64_t longest, LinePosition start,
                                           const std::vector<std::string>& columns);
  virtual ~RecordLines() = default;
  /// Reads the next line into `line`. Returns false if there is none. If the line has more than `longest` bytes,
  /// is_cut() is true and `line` may hold its beginning only. Errors ("data"): the data cannot be read; the lines
  /// before the damage are returned first.
  virtual bool next(std::string& line) = 0;
  /// Returns true if the last line had more than `longest` bytes.
  virtual bool is_cut() const = 0;
  /// Returns the position of the line that the next call of next() reads.
  virtual LinePosition position() const = 0;
  /// Returns why the last record cannot be used, with file and line; empty = it can. `line` is empty then.
  virtual std::string fault() const { return ""; }
};

/// A format of files of records.
struct RecordFormat {
  bool (*has)(std::string_view path);  ///< returns true if the name of a file ends as those of the format
  std::unique_ptr<RecordLines> (*open)(const std::string& path, int64_t longest, LinePosition start,
                                       const std::vector<std::string>& columns);
};

/// Returns the formats: JSON lines, Parquet and FASTA.
std::span<const RecordFormat> record_formats();

/// A reader of lines. Only LF ends a line, and it is no part of the line. The last line may have no LF.
///
/// Memory: the longest line read, at most `longest` bytes.
/// Thread safety: one thread calls the members.
class LineReader final : public RecordLines {
 public:
  /// Opens a file at `start`. Errors: the same as UnpackedFile; Error("data", ...) if `start` is after the end.
  LineReader(const std::string& path, int64_t longest, LinePosition start = {});
  /// Reads the next line into `line`. Returns false if there is none. A line of more than `longest` bytes is cut, and
  /// is_cut() is true then. Errors: the same as UnpackedFile, after the lines that are complete before the damage.
  bool next(std::string& line) override;
  bool is_cut() const override { return is_cut_; }
  LinePosition position() const override { return position_; }

 private:
  bool fill();
  std::unique_ptr<UnpackedFile> file_;
  int64_t longest_;
  LinePosition position_;
  std::vector<char> piece_;
  int64_t begin_ = 0, end_ = 0;  // the range of piece_ that was not returned yet
  bool is_cut_ = false;
};

}  // namespace colossal::data
