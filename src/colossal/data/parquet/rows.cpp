#include "colossal/data/parquet/rows.h"

#include <algorithm>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/text/unicode.h"

namespace colossal::data {
namespace {

// The numbers of fields in FileMetaData, SchemaElement, RowGroup, ColumnChunk and ColumnMetaData, from parquet.thrift.
constexpr int kSchema = 2, kGroups = 4, kElementType = 1, kRepetition = 3, kElementName = 4, kChildren = 5;
constexpr int kChunks = 1, kRows = 3, kMeta = 3, kPath = 3;
constexpr int64_t kOptional = 1, kRepeated = 2;
constexpr int64_t kMaxFooterBytes = 16 << 20;
constexpr int64_t kMaxRows = int64_t{1} << 48;

const std::vector<formats::ThriftValue>& list_of(const formats::ThriftValue& value, int field) {
  const formats::ThriftValue* list = value.find(field);
  require(list != nullptr, "data", "the footer is damaged: it has no field ", field);
  return list->parts;
}

/// Returns the metadata of the chunk of a top-level column; null = the group has none.
const formats::ThriftValue* chunk_of(const formats::ThriftValue& group, const std::string& name) {
  for (const formats::ThriftValue& chunk : list_of(group, kChunks)) {
    const formats::ThriftValue* meta = chunk.find(kMeta);
    if (meta == nullptr) continue;
    const std::vector<formats::ThriftValue>& path = list_of(*meta, kPath);
    if (path.size() == 1 && path[0].bytes == name) return meta;
  }
  return nullptr;
}

}  // namespace

ParquetRows::ParquetRows(const std::string& path, int64_t longest, LinePosition start, std::vector<std::string> columns)
    : file_(InputFile::open(path)), longest_(longest), names_(std::move(columns)) {
  try {
    read_footer();
    choose_columns();
    const auto& groups = list_of(footer_, kGroups);
    for (; group_ < groups.size(); ++group_) {  // whole groups before the start are not read
      const int64_t rows = groups[group_].number_of(kRows);
      require(rows >= 0 && rows <= kMaxRows && row_ <= kMaxRows, "data", "the footer is damaged: ", rows, " rows");
      if (start.offset < row_ + rows) break;
      row_ += rows;
    }
    for (std::string passed; row_ < start.offset && next(passed);) continue;
    require(row_ == start.offset, "data", "the checkpoint's data position is damaged: row ", start.offset, ", it has ",
            row_);
  } catch (const Error& error) {
    throw Error("data", concat(path, ": ", error.message()));
  }
}

void ParquetRows::read_footer() {
  constexpr int64_t kTail = 8;
  char tail[kTail] = {}, head[4] = {};
  if (file_->size() >= kTail + 4) {
    file_->read(0, 4, head);
    file_->read(file_->size() - kTail, kTail, tail);
  }
  const std::string_view mark(tail + 4, 4);
  require(mark != "PARE", "data", "it is encrypted, which is not supported");
  require(std::string_view(head, 4) == "PAR1" && mark == "PAR1", "data", "it is not a Parquet file, or cut short");
  uint32_t size = 0;
  std::memcpy(&size, tail, sizeof size);
  require(size <= kMaxFooterBytes && size <= file_->size() - kTail - 4, "data", "the footer is damaged: ", size,
          " bytes");
  footer_bytes_.resize(size);
  file_->read(file_->size() - kTail - size, size, footer_bytes_.data());
  std::string_view rest = footer_bytes_;
  footer_ = formats::read_thrift(rest);
}

/// Chooses the requested columns among those that are neither lists nor structures.
void ParquetRows::choose_columns() {
  const std::vector<formats::ThriftValue>& schema = list_of(footer_, kSchema);
  std::vector<std::string> flat;
  std::vector<bool> are_optional;
  int64_t within = 0;  // number of elements of open structures that follow
  for (size_t i = 1; i < schema.size(); ++i) {
    const int64_t children = schema[i].number_of(kChildren, 0), repetition = schema[i].number_of(kRepetition, 0);
    require(children >= 0 && children <= static_cast<int64_t>(schema.size()), "data",
            "the footer is damaged: ", children, " columns in one");
    const bool is_inside = within > 0;
    within += children - (is_inside ? 1 : 0);
    const formats::ThriftValue* name = schema[i].find(kElementName);
    if (is_inside || children > 0 || repetition == kRepeated || name == nullptr) continue;
    const int64_t type = schema[i].number_of(kElementType, -1);
    const bool is_wanted = std::find(names_.begin(), names_.end(), name->bytes) != names_.end();
    if (!is_wanted && !(names_.empty() && (type == 1 || type == 2 || type == 6))) continue;
    flat.emplace_back(name->bytes);
    are_optional.push_back(repetition == kOptional);
  }
  for (const std::string& name : names_)
    require(std::find(flat.begin(), flat.end(), name) != flat.end(), "data", "no column ", printable(name),
            " of texts or numbers; set data.text_columns to the columns that hold text");
  names_ = std::move(flat);
  are_optional_ = std::move(are_optional);
}

void ParquetRows::begin_group() {
  const formats::ThriftValue& group = list_of(footer_, kGroups)[group_++];
  left_ = group.number_of(kRows);
  require(left_ >= 0 && left_ <= kMaxRows, "data", "the footer is damaged: ", left_, " rows");
  columns_.clear();
  for (size_t i = 0; i < names_.size() && left_ > 0; ++i) {
    const formats::ThriftValue* meta = chunk_of(group, names_[i]);
    require(meta != nullptr, "data", "a row group has no column ", printable(names_[i]));
    columns_.emplace_back(file_, *meta, are_optional_[i]);
  }
}

void ParquetRows::read_row(std::string& line) {
  nlohmann::json object = nlohmann::json::object();
  int64_t bytes = 0;
  line.clear();
  for (size_t i = 0; i < names_.size(); ++i) {
    const ParquetValue value = columns_[i].next();
    bytes += static_cast<int64_t>(value.text.size());
    is_cut_ = bytes > longest_;
    if (is_cut_ || !line.empty()) continue;  // no break, because the other columns must move to their next row, too
    if (!text::is_utf8(value.text))
      line = value.text;  // is no JSON, so the parser of the line reports it
    else if (value.kind == ParquetValue::Kind::Text)
      object[names_[i]] = value.text;
    else
      object[names_[i]] = value.kind == ParquetValue::Kind::Number ? nlohmann::json(value.number) : nlohmann::json();
  }
  if (!is_cut_ && line.empty()) line = object.dump();
}

bool ParquetRows::next(std::string& line) {
  try {
    while (left_ == 0) {
      if (group_ == list_of(footer_, kGroups).size()) return false;
      begin_group();
    }
    read_row(line);
    --left_;
    ++row_;
    return true;
  } catch (const Error& error) {
    throw Error("data", concat(file_->path(), ": ", error.message()));
  }
}

}  // namespace colossal::data
