// A reader of the lines of a file, which may be packed, with the position of each line.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/data/streams/record_lines.h"
#include "colossal/data/streams/unpacked_file.h"

namespace colossal::data {

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
