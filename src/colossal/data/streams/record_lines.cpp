#include "colossal/data/streams/record_lines.h"

#include <algorithm>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/data/parquet/rows.h"
#include "colossal/data/streams/json_lines.h"

namespace colossal::data {
namespace {

constexpr int64_t kLinePiece = 1 << 16;

}  // namespace

std::unique_ptr<RecordLines> RecordLines::open(const std::string& path, int64_t longest, LinePosition start,
                                               const std::vector<std::string>& columns) {
  if (is_parquet(path)) return std::make_unique<ParquetRows>(path, longest, start, columns);
  return std::make_unique<LineReader>(path, longest, start);
}

LineReader::LineReader(const std::string& path, int64_t longest, LinePosition start)
    : file_(UnpackedFile::open(path)), longest_(longest), position_(start), piece_(kLinePiece) {
  const int64_t skipped = start.offset > 0 ? file_->skip(start.offset) : 0;
  require(skipped == start.offset, "data", "the checkpoint's data position is damaged: byte ", start.offset, " of ",
          path, ", which has ", skipped);
}

bool LineReader::fill() {
  if (begin_ < end_) return true;
  begin_ = end_ = 0;  // before read(), so that the piece is empty if read() throws
  end_ = file_->read(piece_.data(), kLinePiece);
  return end_ > 0;
}

bool LineReader::next(std::string& line) {
  line.clear();
  is_cut_ = false;
  LinePosition behind = position_;
  while (fill()) {
    const char* from = piece_.data() + begin_;
    const auto* feed = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    const int64_t count = (feed != nullptr ? feed : piece_.data() + end_) - from;
    const int64_t room = longest_ - static_cast<int64_t>(line.size());
    line.append(from, std::min(count, room));
    is_cut_ = is_cut_ || count > room;
    begin_ += count + (feed != nullptr ? 1 : 0);
    behind.offset += count + (feed != nullptr ? 1 : 0);
    if (feed != nullptr) break;
  }
  if (behind.offset == position_.offset) return false;
  ++behind.lines;
  position_ = behind;
  return true;
}

}  // namespace colossal::data
