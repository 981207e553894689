// The lines of a file that may be packed, one after the other, and where each of them stands.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/data/record_lines.h"
#include "colossal/data/unpacked_file.h"

namespace colossal::data {

/// LF alone ends a line (and is no part of it), the last one may go without.
///
/// Memory: the longest line read, at most `longest` bytes.
/// Thread safety: one thread calls the members.
class LineReader final : public RecordLines {
 public:
  /// Errors: UnpackedFile's; Error("data", ...) of a start behind the end.
  LineReader(const std::string& path, int64_t longest, LinePosition start = {});
  /// Whether there is another line, then in `line`: cut where it has more than `longest` bytes, which is_cut() tells.
  /// Errors: UnpackedFile's, after the lines that were whole before the damage.
  bool next(std::string& line) override;
  bool is_cut() const override { return is_cut_; }
  LinePosition position() const override { return position_; }

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
