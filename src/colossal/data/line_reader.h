// The lines of a file that may be packed, one after the other, and where each of them stands.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/data/unpacked_file.h"

namespace colossal::data {

/// Where a line begins: `offset` bytes into the unpacked content, behind `lines` others.
struct LinePosition {
  int64_t offset = 0, lines = 0;
  bool operator==(const LinePosition&) const = default;
};

/// LF alone ends a line (and is no part of it), the last one may go without.
///
/// Memory: the longest line read, at most `longest` bytes.
/// Thread safety: one thread calls the members.
class LineReader {
 public:
  /// Errors: UnpackedFile's; Error("data", ...) of a start behind the end.
  LineReader(const std::string& path, int64_t longest, LinePosition start = {});
  /// Whether there is another line, then in `line`: cut where it has more than `longest` bytes, which is_cut() tells.
  /// Errors: UnpackedFile's, after the lines that were whole before the damage.
  bool next(std::string& line);
  bool is_cut() const { return is_cut_; }
  /// Of the line that next() gives.
  LinePosition position() const { return position_; }

 private:
  bool fill();
  std::unique_ptr<UnpackedFile> file_;
  int64_t longest_;
  LinePosition position_;
  std::vector<char> piece_;
  int64_t begin_ = 0, end_ = 0;  // what is left of the piece
  bool is_cut_ = false;
};

}  // namespace colossal::data
