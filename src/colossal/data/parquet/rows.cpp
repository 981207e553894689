#include "colossal/data/parquet/rows.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/text/unicode.h"

namespace colossal::data {
namespace {

constexpr int64_t kMaxRowCount = int64_t{1} << 48;  // of all groups, so that their sum is a number

bool is_text_or_number(const ParquetLeaf& leaf) {
  constexpr int64_t kInt32 = 1, kInt64 = 2, kByteArray = 6;
  return leaf.type == kInt32 || leaf.type == kInt64 || leaf.type == kByteArray;
}

}  // namespace

ParquetRows::ParquetRows(const std::string& path, int64_t longest, LinePosition start, std::vector<std::string> columns)
    : file_(InputFile::open(path)), longest_(longest), names_(std::move(columns)) {
  try {
    footer_ = std::make_unique<ParquetFooter>(*file_);
    choose_columns();
    for (; group_ < footer_->groups(); ++group_) {  // whole groups before the start are not read
      const int64_t rows = footer_->rows(group_);
      require(row_ <= kMaxRowCount, "data", "the footer is damaged: ", row_, " rows");
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

/// Chooses the requested columns among those that are neither lists nor structures.
void ParquetRows::choose_columns() {
  std::vector<std::string> flat;
  for (const ParquetLeaf& leaf : footer_->leaves()) {
    if (leaf.path.size() > 1 || leaf.is_list || leaf.path[0].empty()) continue;
    const bool is_wanted = std::find(names_.begin(), names_.end(), leaf.path[0]) != names_.end();
    if (!is_wanted && !(names_.empty() && is_text_or_number(leaf))) continue;
    flat.push_back(leaf.path[0]);
    levels_.push_back(leaf.levels);
  }
  for (const std::string& name : names_)
    require(std::find(flat.begin(), flat.end(), name) != flat.end(), "data", "no column ", printable(name),
            " of texts or numbers; set data.text_columns to the columns that hold text");
  names_ = std::move(flat);
}

void ParquetRows::begin_group() {
  left_ = footer_->rows(group_);
  columns_.clear();
  for (size_t i = 0; i < names_.size() && left_ > 0; ++i)
    columns_.emplace_back(file_, footer_->chunk(group_, {names_[i]}), levels_[i]);
  ++group_;
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
      if (group_ == footer_->groups()) return false;
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
