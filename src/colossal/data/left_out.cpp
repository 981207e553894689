#include "colossal/data/left_out.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json_file.h"

namespace colossal::data {
namespace {

constexpr size_t kMaxEndings = 10;

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
  std::string text;
  for (size_t i = 0; i < std::min(kMaxEndings, endings.size()); ++i) {
    text += concat(text.empty() ? "" : ", ", endings[i].second, " ", endings[i].first);
    listed += endings[i].second;
  }
  if (listed < files) text += concat(", ", files - listed, " others");
  return concat("in ", folder, " ", files, files == 1 ? " file is" : " files are", " not read: ", text);
}

}  // namespace colossal::data
