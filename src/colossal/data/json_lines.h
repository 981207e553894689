// Records of JSON lines: an object a line, of which some members are the columns that are read.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/data/left_out.h"

namespace colossal::data {

/// Whether the name of a file says that it holds JSON lines: .jsonl, .ndjson, each also packed (.gz, .zst), and .json
/// where it is packed; in either case.
bool is_json_lines(std::string_view path);

/// Whether the name of a file says that it is a Parquet file.
bool is_parquet(std::string_view path);

/// Whether it is one of either.
bool is_record_file(std::string_view path);

/// The files that a path names: itself, or of a folder all record files in it and in its folders, in the order
/// of their names, as visible_files() finds and counts them.
/// Errors ("data"): no such path, a folder without such files or that cannot be read, a name that is not UTF-8.
std::vector<std::string> record_files(const std::string& path, LeftOut* left_out = nullptr);

/// Whether a folder is one of records: their files lie in it, or in its folders and there no texts (text_files())
/// beside them.
bool is_record_folder(const std::string& path);

/// Checks that a text does not begin with `start` as JSON data does. `is_whole`: `start` is all of it.
/// Errors ("data"): it is a JSON object or list, or JSON lines; the message names `path` and how to have it read.
void require_no_json(std::string_view start, bool is_whole, const std::string& path);

/// Whether nothing but white space stands in a line; those are no records.
bool is_blank(std::string_view line);

/// The object that line number `number` of the file holds; a byte order mark before the first is passed over.
/// Errors ("data"), beginning with `path:number`: not UTF-8, not JSON (NaN, comments and lone surrogates are none;
/// numbers that a double cannot hold), nested deeper than 100, no object.
nlohmann::json parse_json_line(std::string_view line, const std::string& path, int64_t number);

/// The texts of these columns, in their order, with an empty line between two.
/// Errors ("data"), beginning with `path:number`: a column that is missing or no text.
std::string text_of_columns(const nlohmann::json& record, const std::vector<std::string>& columns,
                            const std::string& path, int64_t number);

}  // namespace colossal::data
