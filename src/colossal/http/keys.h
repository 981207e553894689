// The keys of a server's clients.
//
//   const Keys keys = read_keys("keys.txt");       // one key a line; empty lines and comments (#) are skipped
//   const int64_t number = keys.number_of(token);  // 1 for the first key, 0 for a text that is no key
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace colossal::http {

class Keys {
 public:
  Keys() = default;
  explicit Keys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  bool is_empty() const { return keys_.empty(); }
  int64_t size() const { return static_cast<int64_t>(keys_.size()); }
  /// Returns the number of a key, from 1, or 0 if `text` is none. The time depends on the length of `text` and the
  /// number of keys only, so that a client cannot find a key by measuring it.
  int64_t number_of(std::string_view text) const;

 private:
  std::vector<std::string> keys_;
};

/// Reads a file of keys. Blanks at the ends of a line do not count.
/// Errors ("serve"): the file has no key; a key has less than 8 characters, has a blank or another character that is
/// not printable ASCII, or occurs twice. The message has the line's number and never the key. Errors of read_file().
Keys read_keys(const std::string& path);

}  // namespace colossal::http
