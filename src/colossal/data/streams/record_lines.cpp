#include "colossal/data/streams/record_lines.h"

#include "colossal/data/parquet/rows.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/streams/line_reader.h"

namespace colossal::data {

std::unique_ptr<RecordLines> RecordLines::open(const std::string& path, int64_t longest, LinePosition start,
                                               const std::vector<std::string>& columns) {
  if (is_parquet(path)) return std::make_unique<ParquetRows>(path, longest, start, columns);
  return std::make_unique<LineReader>(path, longest, start);
}

}  // namespace colossal::data
