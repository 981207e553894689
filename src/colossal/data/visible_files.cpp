#include "colossal/data/visible_files.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/text/unicode.h"

namespace colossal::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxEndings = 10;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

bool is_folder_of_a_run(const fs::path& path) {
  return fs::exists(path / "metrics.jsonl") && fs::exists(path / "config.toml");
}

/// Calls `take` with each file that is wanted, until it returns false. Counts the other files in `left_out`.
void walk(const std::string& folder, const FileRule& wanted, const FileRule& take, LeftOut* left_out) {
  try {
    for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
      const fs::path& path = entry->path();
      std::error_code none;  // a link may have no target, which is no error
      if (entry->is_directory(none)) {
        if (is_hidden(path) || is_folder_of_a_run(path)) entry.disable_recursion_pending();
      } else if (!is_hidden(path) && entry->is_regular_file(none)) {
        const bool is_wanted = wanted(path.string());
        if (is_wanted && !take(path.string())) return;
        if (!is_wanted && left_out != nullptr) left_out->add(path.string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw Error("data", concat("cannot read ", folder, ": ", error.code().message()));
  }
}

}  // namespace

void LeftOut::add(const std::string& path, const std::string& why) {
  const std::string ending = lower_case(std::filesystem::path(path).extension().string());
  ++by_ending_[(ending.empty() ? "without an ending" : printable(ending)) + why];
}

std::optional<std::string> LeftOut::notice(const std::string& folder) const {
  std::vector<std::pair<std::string, int64_t>> endings(by_ending_.begin(), by_ending_.end());
  std::stable_sort(endings.begin(), endings.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  int64_t files = 0, listed = 0;
  for (const auto& [ending, count] : endings) files += count;
  if (files == 0) return std::nullopt;
  endings.resize(std::min(kMaxEndings, endings.size()));
  for (const auto& [ending, count] : endings) listed += count;
  std::string text = join(endings, ", ", [](const auto& one) { return concat(one.second, " ", one.first); });
  if (listed < files) text += concat(", ", files - listed, " others");
  return concat("in ", folder, " ", files, files == 1 ? " file is" : " files are", " not read: ", text);
}

std::vector<std::string> visible_files(const std::string& folder, const FileRule& wanted, LeftOut* left_out) {
  std::vector<std::string> files;
  const auto take = [&](const std::string& path) {
    require_utf8_name(path);
    files.push_back(path);
    return true;
  };
  walk(folder, wanted, take, left_out);
  std::sort(files.begin(), files.end());
  return files;
}

bool has_visible_file(const std::string& folder, const FileRule& wanted) {
  bool found = false;
  try {
    walk(folder, wanted, [&](const std::string&) { return !(found = true); }, nullptr);
  } catch (const Error&) {
    return false;
  }
  return found;
}

void require_utf8_name(const std::string& path) {
  require(text::is_utf8(path), "data", "file names must be UTF-8, because checkpoints store them: got ",
          printable(path), "; rename it, for instance with convmv");
}

}  // namespace colossal::data
