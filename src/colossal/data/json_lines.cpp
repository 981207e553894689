#include "colossal/data/json_lines.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/utf8.h"

namespace colossal::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "\xef\xbb\xbf";  // byte order mark
constexpr std::array<std::string_view, 8> kJsonLines = {".jsonl",     ".ndjson",     ".jsonl.gz", ".jsonl.zst",
                                                        ".ndjson.gz", ".ndjson.zst", ".json.gz",  ".json.zst"};

bool is_whole_utf8(std::string_view text) {
  while (!text.empty()) {
    // Of most texts most bytes are ASCII.
    const auto other = std::find_if(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) < 0; });
    text.remove_prefix(other - text.begin());
    if (text.empty()) return true;
    const text::Utf8Character next = text::first_character(text);
    if (next.kind != text::Utf8::Complete) return false;
    text.remove_prefix(next.length);
  }
  return true;
}

}  // namespace

bool is_json_lines(std::string_view path) {
  return std::any_of(kJsonLines.begin(), kJsonLines.end(), [&](std::string_view end) { return path.ends_with(end); });
}

std::vector<std::string> json_lines_files(const std::string& path) {
  std::error_code failed;
  require(fs::exists(path, failed), "data", "no such file or folder: ", path);
  if (!fs::is_directory(path, failed)) return {path};
  std::vector<std::string> files;
  try {
    for (auto entry = fs::recursive_directory_iterator(path); entry != fs::recursive_directory_iterator(); ++entry) {
      const bool is_hidden = entry->path().filename().string().starts_with(".");
      if (is_hidden && entry->is_directory()) entry.disable_recursion_pending();
      if (!is_hidden && entry->is_regular_file() && is_json_lines(entry->path().string()))
        files.push_back(entry->path().string());
    }
  } catch (const fs::filesystem_error& error) {
    throw Error("data", concat("cannot read ", path, ": ", error.code().message()));
  }
  require(!files.empty(), "data", "no files of JSON lines (.jsonl, .jsonl.gz, .jsonl.zst, .ndjson) in ", path);
  std::sort(files.begin(), files.end());
  return files;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

nlohmann::json parse_json_line(std::string_view line, const std::string& path, int64_t number) {
  const std::string where = concat(path, ":", number);
  if (number == 1 && line.starts_with(kMark)) line.remove_prefix(kMark.size());
  require(is_whole_utf8(line), "data", where, ": not UTF-8; convert the file, for instance with iconv -t UTF-8");
  return parse_json_object(line, where, "data");
}

std::string text_of_columns(const nlohmann::json& record, const std::vector<std::string>& columns,
                            const std::string& path, int64_t number) {
  std::string text;
  for (const std::string& column : columns) {
    const auto found = record.find(column);
    require(found != record.end(), "data", path, ":", number, ": no column ", printable(column),
            "; set data.text_columns to the names of those that hold text");
    require(found->is_string(), "data", path, ":", number, ": column ", printable(column), " must be text: got ",
            found->type_name());
    if (&column != &columns.front()) text += "\n\n";
    text += found->get_ref<const std::string&>();
  }
  return text;
}

}  // namespace colossal::data
