#include "colossal/data/streams/record_lines.h"

#include <algorithm>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/data/parquet/rows.h"
#include "colossal/data/streams/fasta_records.h"
#include "colossal/data/streams/json_lines.h"

namespace colossal::data {
namespace {

constexpr int64_t kLinePiece = 1 << 16;

using Columns = std::vector<std::string>;

std::unique_ptr<RecordLines> open_lines(const std::string& path, int64_t longest, LinePosition start, const Columns&) {
  return std::make_unique<LineReader>(path, longest, start);
}

std::unique_ptr<RecordLines> open_parquet(const std::string& path, int64_t longest, LinePosition start,
                                          const Columns& columns) {
  return std::make_unique<ParquetRows>(path, longest, start, columns);
}

std::unique_ptr<RecordLines> open_fasta(const std::string& path, int64_t longest, LinePosition start, const Columns&) {
  return std::make_unique<FastaRecords>(path, longest, start);
}

constexpr RecordFormat kFormats[] = {{is_json_lines, open_lines}, {is_parquet, open_parquet}, {is_fasta, open_fasta}};

}  // namespace

std::span<const RecordFormat> record_formats() { return kFormats; }

std::unique_ptr<RecordLines> RecordLines::open(const std::string& path, int64_t longest, LinePosition start,
                                               const std::vector<std::string>& columns) {
  for (const RecordFormat& format : record_formats())
    if (format.has(path)) return format.open(path, longest, start, columns);
  return open_lines(path, longest, start, columns);
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
