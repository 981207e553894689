// Endings of file names, compared without regard to case.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>

namespace colossal {

/// Returns the text with its ASCII letters in lower case, for any locale.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower;
}

/// Returns true if a file's name ends with `ending` in any case: "x.JSONL" ends with ".jsonl". `ending` must be in
/// lower case.
inline bool has_ending(std::string_view path, std::string_view ending) {
  return path.size() >= ending.size() && lower_case(path.substr(path.size() - ending.size())) == ending;
}

}  // namespace colossal
