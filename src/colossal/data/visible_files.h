// The files of a folder of data.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/data/left_out.h"

namespace colossal::data {

/// A function that returns true if it accepts a file.
using FileRule = std::function<bool(const std::string& path)>;

/// Returns the files of a folder, and of the folders in it, that `wanted` accepts. They are in the order of their
/// paths, so the list is the same on every machine. The list has no hidden files and no files of hidden folders (.git,
/// .ipynb_checkpoints) or run folders (with config.toml and metrics.jsonl). Links to files are followed; links to
/// folders are not. If `left_out` is not null, it counts the files that `wanted` refuses.
/// Errors ("data"): a folder cannot be read; the same as require_utf8_name().
std::vector<std::string> visible_files(const std::string& folder, const FileRule& wanted, LeftOut* left_out = nullptr);

/// Returns true if visible_files() would find a file. A folder that cannot be read gives false. Cost: the search ends
/// at the first file.
bool has_visible_file(const std::string& folder, const FileRule& wanted);

/// Checks that a path is UTF-8, because checkpoints and configs store file names as JSON and TOML. Errors ("data"): it
/// is not.
void require_utf8_name(const std::string& path);

}  // namespace colossal::data
