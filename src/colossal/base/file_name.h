// Endings of file names, in which case does not matter.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>

namespace colossal {

/// The text with ASCII letters in lower case, whatever the locale.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower;
}

/// Returns true if a file's name ends with `ending`, which is in lower case: "x.JSONL" ends with ".jsonl".
inline bool has_ending(std::string_view path, std::string_view ending) {
  return path.size() >= ending.size() && lower_case(path.substr(path.size() - ending.size())) == ending;
}

}  // namespace colossal
