// The files of a folder of data, and counts of those that are not read, by ending.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace colossal::data {

/// A counter of files by the ending of their names, in lower case.
class LeftOut {
 public:
  /// Counts a file. `why` is added to its ending, as in ".txt (links)".
  void add(const std::string& path, const std::string& why = "");
  /// Returns a line for the log, "in FOLDER 12 files are not read: 9 .json, 3 .webp", or nothing if there are none.
  std::optional<std::string> notice(const std::string& folder) const;

 private:
  std::map<std::string, int64_t> by_ending_;
};

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
