// Which files lie in a folder of data.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/data/left_out.h"

namespace colossal::data {

/// Accepts the path of a file.
using FileRule = std::function<bool(const std::string& path)>;

/// The files of a folder and of its folders that `wanted` accepts, in the order of their paths: the same list on every
/// machine. Left out are hidden files and folders (.git, .ipynb_checkpoints), and folders of runs (config.toml beside
/// metrics.jsonl); links to files are followed, links to folders are not. Files that `wanted` refuses are counted in
/// `left_out`, if it is not null.
/// Errors ("data"): a folder that cannot be read; require_utf8_name()'s.
std::vector<std::string> visible_files(const std::string& folder, const FileRule& wanted, LeftOut* left_out = nullptr);

/// Whether visible_files() would find any; a folder that cannot be read has none. Cost: up to the first one.
bool has_visible_file(const std::string& folder, const FileRule& wanted);

/// Checkpoints and configs keep names of files as JSON and TOML. Errors ("data"): a path that is not UTF-8.
void require_utf8_name(const std::string& path);

}  // namespace colossal::data
