#include "colossal/data/streams/json_lines.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/data/streams/record_lines.h"
#include "colossal/data/texts/files.h"
#include "colossal/data/visible_files.h"
#include "colossal/text/unicode.h"

namespace colossal::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "\xef\xbb\xbf";  // byte order mark
constexpr std::array<std::string_view, 8> kJsonLines = {".jsonl",     ".ndjson",     ".jsonl.gz", ".jsonl.zst",
                                                        ".ndjson.gz", ".ndjson.zst", ".json.gz",  ".json.zst"};

}  // namespace

bool is_json_lines(std::string_view path) {
  return std::any_of(kJsonLines.begin(), kJsonLines.end(), [&](auto ending) { return has_ending(path, ending); });
}

bool is_parquet(std::string_view path) { return has_ending(path, ".parquet"); }

bool is_record_file(std::string_view path) {
  const auto formats = record_formats();
  return std::any_of(formats.begin(), formats.end(), [&](const RecordFormat& format) { return format.has(path); });
}

std::vector<std::string> record_files(const std::string& path, LeftOut* left_out) {
  std::error_code failed;
  require(fs::exists(path, failed), "data", "no such file or folder: ", path);
  if (!fs::is_directory(path, failed)) {
    require_utf8_name(path);
    return {path};
  }
  const std::vector<std::string> files = visible_files(path, is_record_file, left_out);
  require(!files.empty(), "data",
          "no files of JSON lines (.jsonl, .jsonl.gz, .jsonl.zst, .ndjson), no .parquet and no .fasta in ", path);
  return files;
}

bool is_record_folder(const std::string& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed) || !has_visible_file(path, is_record_file)) return false;
  for (fs::directory_iterator entry(path, failed), end; !failed && entry != end; entry.increment(failed))
    if (entry->is_regular_file() && is_record_file(entry->path().string())) return true;
  // A README next to the folders of the data does not count as text; a text in one of these folders does.
  const std::vector<std::string> texts = text_files(path, {});
  return std::none_of(texts.begin(), texts.end(), [&](const std::string& text) {
    return fs::path(text).lexically_relative(path).has_parent_path();
  });
}

void require_no_json(std::string_view start, bool is_whole, const std::string& path) {
  if (start.starts_with(kMark)) start.remove_prefix(kMark.size());
  const size_t begin = start.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || (start[begin] != '{' && start[begin] != '[')) return;
  start.remove_prefix(begin);
  const size_t feed = start.find('\n');
  const std::string_view first_line = start.substr(0, feed);
  const bool has_more = feed != std::string_view::npos && !is_blank(start.substr(feed));
  require(first_line[0] != '{' || !has_more || !is_json(first_line, true), "data", path,
          " must be a text file: got JSON lines; rename it so that its name ends in .jsonl");
  require(!is_json(start, is_whole), "data", path, " must be a text file: got a JSON ",
          start[0] == '{' ? "object" : "list",
          "; write its records as JSON lines (.jsonl), for instance with jq -c '.[]'");
}

namespace {

/// Returns the text of line `number`, of which `where` is the place, without a byte order mark.
std::string_view json_of_line(std::string_view line, const std::string& where, int64_t number) {
  if (number == 1 && line.starts_with(kMark)) line.remove_prefix(kMark.size());
  require(text::is_utf8(line), "data", where, ": not UTF-8; convert the file, for instance with iconv -t UTF-8");
  return line;
}

/// Returns the column of a record that holds a list of messages; "" = none does.
std::string conversation_of(const nlohmann::json& record) {
  for (const char* name : {"messages", "conversations", "conversation"}) {
    const auto found = record.find(name);
    if (found != record.end() && found->is_array() && !found->empty() && found->front().is_object()) return name;
  }
  return "";
}

}  // namespace

nlohmann::json parse_json_line(std::string_view line, const std::string& path, int64_t number) {
  const std::string where = concat(path, ":", number);
  return parse_json_object(json_of_line(line, where, number), where, "data");
}

nlohmann::ordered_json parse_ordered_json_line(std::string_view line, const std::string& path, int64_t number) {
  const std::string where = concat(path, ":", number);
  return parse_ordered_json(json_of_line(line, where, number), where, "data");
}

std::string text_of_columns(const nlohmann::json& record, const std::vector<std::string>& columns,
                            const std::string& path, int64_t number) {
  std::string text;
  for (const std::string& column : columns) {
    const auto found = record.find(column);
    const bool is_text = found != record.end() && found->is_string();
    const std::string conversation = is_text ? "" : conversation_of(record);
    require(conversation.empty(), "data", path, ":", number, ": training needs a text in column ", printable(column),
            ": got a conversation in column ", conversation,
            "; train on conversations with alignment.method = \"sft\", or write each as one text");
    require(found != record.end(), "data", path, ":", number, ": no column ", printable(column),
            "; set data.text_columns to the columns that hold text");
    require(is_text, "data", path, ":", number, ": column ", printable(column), " must be text: got ",
            found->type_name());
    if (&column != &columns.front()) text += "\n\n";
    text += found->get_ref<const std::string&>();
  }
  return text;
}

}  // namespace colossal::data
