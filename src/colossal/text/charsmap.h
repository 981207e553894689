// SentencePiece's precompiled character map: which strings a text has replaced before it is cut, as a trie (a double
// array, as the library Darts-clone writes it) and the replacements behind it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::text {

class Charsmap {
 public:
  /// Empty `bytes`: a map that replaces nothing.
  /// Errors: throws Error("tokenizer", ...) where sizes do not fit, or a replacement is of more than 1024 bytes.
  explicit Charsmap(std::string_view bytes = {});
  bool empty() const { return units_.empty(); }
  struct Rule {
    size_t length;           ///< bytes of the text that it replaces
    std::string_view value;  ///< with what; lives as long as the map
  };
  /// The rule of the shortest prefix of `text` that has one, or of the longest.
  std::optional<Rule> shortest(std::string_view text) const;
  std::optional<Rule> longest(std::string_view text) const;

 private:
  template <class Found>
  void prefixes(std::string_view text, const Found& found) const;
  std::string_view value_at(uint32_t offset) const;
  std::vector<uint32_t> units_;
  std::string values_;  // each ends with a zero byte
};

}  // namespace colossal::text
