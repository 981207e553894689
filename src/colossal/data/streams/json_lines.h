// Records of JSON lines. Each line is an object, and some of its members are the columns that are read.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/data/visible_files.h"

namespace colossal::data {

/// Returns true if the name of a file ends as JSON lines do, in upper or lower case. The endings are .jsonl and
/// .ndjson, also packed (.gz, .zst), and .json only if it is packed.
bool is_json_lines(std::string_view path);

/// Returns true if the name of a file ends in .parquet, in upper or lower case.
bool is_parquet(std::string_view path);

/// Returns true if the name of a file ends as one of record_formats() does.
bool is_record_file(std::string_view path);

/// Returns the files that a path names. A file names itself. A folder names all record files in it and in its folders,
/// in the order of their names, as visible_files() finds them. If `left_out` is not null, it counts the other files.
/// Errors ("data"): the path does not exist; a folder has no such files or cannot be read; a name is not UTF-8.
std::vector<std::string> record_files(const std::string& path, LeftOut* left_out = nullptr);

/// Returns true if a folder holds records: it has record files itself, or its folders have record files and no texts
/// (text_files()).
bool is_record_folder(const std::string& path);

/// Checks that a text which begins with `start` is not JSON data. `is_whole` is true if `start` is the complete text.
/// Errors ("data"): it is a JSON object or list, or JSON lines. The message has `path` and a remedy.
void require_no_json(std::string_view start, bool is_whole, const std::string& path);

/// Returns true if a line has only white space. Such a line is no record.
inline bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

/// Parses the object in line number `number` of a file. A byte order mark in the first line is ignored.
/// Errors ("data"), beginning with `path:number`: the line is not UTF-8, not JSON, no object, or nested deeper than
/// 100. NaN, comments, lone surrogates and numbers that a double cannot hold are not JSON.
nlohmann::json parse_json_line(std::string_view line, const std::string& path, int64_t number);

/// Parses a line like parse_json_line(), but it may hold any value, and objects keep the order of their members.
nlohmann::ordered_json parse_ordered_json_line(std::string_view line, const std::string& path, int64_t number);

/// Returns the texts of these columns, in their order, separated by an empty line.
/// Errors ("data"), beginning with `path:number`: a column is missing or is no text.
std::string text_of_columns(const nlohmann::json& record, const std::vector<std::string>& columns,
                            const std::string& path, int64_t number);

}  // namespace colossal::data
