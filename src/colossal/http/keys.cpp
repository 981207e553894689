#include "colossal/http/keys.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/file.h"

namespace colossal::http {
namespace {

constexpr size_t kShortestKey = 8;
constexpr int64_t kMaxFileBytes = 16 << 20;

/// Compares all of `text` with `key`, also after the first difference. `key` is not empty.
bool equals_in_constant_time(std::string_view text, std::string_view key) {
  unsigned difference = text.size() == key.size() ? 0 : 1;
  size_t k = 0;
  for (const char c : text) {
    difference |= static_cast<unsigned char>(c) ^ static_cast<unsigned char>(key[k]);
    k = k + 1 == key.size() ? 0 : k + 1;
  }
  return difference == 0;
}

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace

int64_t Keys::number_of(std::string_view text) const {
  int64_t number = 0;
  for (size_t i = 0; i < keys_.size(); ++i) {
    number |= equals_in_constant_time(text, keys_[i]) ? static_cast<int64_t>(i) + 1 : 0;  // keys are distinct
  }
  return number;
}

Keys read_keys(const std::string& path) {
  const std::string content = read_file(path, kMaxFileBytes);
  std::vector<std::string> keys;
  int64_t line = 0;
  for (size_t begin = 0; begin < content.size(); ++line) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view key = without_blanks(std::string_view(content).substr(begin, end - begin));
    begin = end + 1;
    if (key.empty() || key[0] == '#') continue;
    const bool is_printable = std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 127; });
    require(is_printable, "serve", "a key must be printable ASCII without blanks: see line ", line + 1, " of ", path);
    require(key.size() >= kShortestKey, "serve", "a key must have at least ", kShortestKey, " characters: got ",
            key.size(), " in line ", line + 1, " of ", path, "; `openssl rand -hex 16` makes one");
    require(std::find(keys.begin(), keys.end(), key) == keys.end(), "serve",
            "keys must be distinct: got an earlier key again in line ", line + 1, " of ", path);
    keys.emplace_back(key);
  }
  require(!keys.empty(), "serve", "a key file must have at least one key: got none in ", path,
          "; write one key a line, such as one of `openssl rand -hex 16`");
  return Keys(std::move(keys));
}

}  // namespace colossal::http
