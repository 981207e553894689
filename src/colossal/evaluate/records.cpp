#include "colossal/evaluate/records.h"

#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/streams/record_lines.h"
#include "colossal/data/streams/unpacked_file.h"
#include "colossal/text/unicode.h"

namespace colossal::evaluate {
namespace {

constexpr int64_t kMaxLine = int64_t{64} << 20, kMaxCsv = int64_t{1} << 30;  // bytes

/// A reader of the rows of a CSV text.
class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& path) : text_(text), path_(path) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // byte order mark
  }

  std::vector<CsvRow> rows() {
    std::vector<CsvRow> rows;
    while (at_ < text_.size()) {
      CsvRow row{{}, line_};
      do row.fields.push_back(field());
      while (skip(','));
      end_line();
      const bool is_blank = row.fields.size() == 1 && data::is_blank(row.fields[0]) && !was_quoted_;
      if (!is_blank) rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  bool skip(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::string field() {
    was_quoted_ = skip('"');
    return was_quoted_ ? quoted() : plain();
  }

  std::string plain() {
    size_t end = text_.find_first_of(",\n", at_);
    if (end == std::string_view::npos) end = text_.size();
    std::string found(text_.substr(at_, end - at_));
    const bool is_last = end == text_.size() || text_[end] == '\n';
    if (is_last && found.ends_with('\r')) found.pop_back();
    at_ = end;
    return found;
  }

  std::string quoted() {
    const int64_t opened = line_;
    std::string found;
    while (true) {
      require(at_ < text_.size(), "evaluate", path_, ":", opened,
              ": a quoted field must end in a quote: got the end of "
              "the file; close the quote");
      const char c = text_[at_++];
      line_ += c == '\n';
      if (c == '"' && !skip('"')) return found;
      found += c;
    }
  }

  // Ends a row, after a field or after the quote that closes one.
  void end_line() {
    skip('\r');
    require(at_ >= text_.size() || text_[at_] == '\n', "evaluate", path_, ":", line_,
            ": a comma or the end of the line must follow a closing quote: got other text; write quotes within a field "
            "twice");
    skip('\n');
    ++line_;
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
  int64_t line_ = 1;
  bool was_quoted_ = false;
};

/// Returns true if a first row has names. Copies of MMLU's files have a header with other names between the outer ones.
bool is_header(const std::vector<std::string>& row, const std::vector<std::string>& columns) {
  return columns.empty() || (row.front() == columns.front() && row.back() == columns.back());
}

std::vector<Record> csv_records(const std::string& path, const std::vector<std::string>& columns, int64_t limit) {
  std::vector<CsvRow> rows = parse_csv(data::read_unpacked(path, kMaxCsv), path);
  std::vector<std::string> names = columns;
  if (!rows.empty() && is_header(rows.front().fields, columns)) {
    if (columns.empty()) names = std::move(rows.front().fields);
    rows.erase(rows.begin());
  }
  std::vector<Record> records;
  for (CsvRow& row : rows) {
    if (limit > 0 && static_cast<int64_t>(records.size()) == limit) break;
    require(row.fields.size() == names.size(), "evaluate", path, ":", row.line, ": a row must have ", names.size(),
            " fields: got ", row.fields.size(),
            columns.empty() ? "; quote fields with commas" : "; quote fields with commas, or change `columns`");
    nlohmann::ordered_json members = nlohmann::ordered_json::object();
    for (size_t i = 0; i < names.size(); ++i) members[names[i]] = std::move(row.fields[i]);
    records.push_back({std::move(members), row.line});
  }
  return records;
}

}  // namespace

std::vector<CsvRow> parse_csv(std::string_view text, const std::string& path) {
  require(text::is_utf8(text), "evaluate", path, ": must be UTF-8; convert the file, for instance with iconv -t UTF-8");
  return CsvReader(text, path).rows();
}

std::vector<Record> read_records(const std::string& path, const std::vector<std::string>& columns, int64_t limit) {
  std::vector<Record> records;
  if (has_ending(path, ".csv")) {
    records = csv_records(path, columns, limit);
  } else {
    const std::unique_ptr<data::RecordLines> lines = data::RecordLines::open(path, kMaxLine, {}, {});
    std::string line;
    while ((limit == 0 || static_cast<int64_t>(records.size()) < limit) && lines->next(line)) {
      const int64_t number = lines->position().lines;
      require(!lines->is_cut(), "evaluate", path, ":", number, ": a line must have at most ", kMaxLine, " bytes");
      if (data::is_blank(line)) continue;
      records.push_back({nlohmann::ordered_json(data::parse_json_line(line, path, number)), number});
    }
  }
  require(!records.empty(), "evaluate", path, ": must have at least one record: got none");
  return records;
}

}  // namespace colossal::evaluate
