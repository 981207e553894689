// The sources below a folder.
#pragma once
#include <algorithm>
#include <filesystem>
#include <vector>

namespace colossal {

inline bool is_source(const std::filesystem::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh";
}

/// Returns the files in order of their paths; none if there is no such folder.
inline std::vector<std::filesystem::path> sources_below(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::exists(folder)) return files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && is_source(entry.path())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace colossal
