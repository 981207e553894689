// SentencePiece's precompiled character map: replacements of strings that are applied before a text is split. The file
// holds a trie (a double array, in the format of the library Darts-clone) followed by the replacement texts.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::text {

class Charsmap {
 public:
  /// Parses the map of a SentencePiece model. Empty `bytes`: a map that replaces no text.
  /// Errors: throws Error("tokenizer", ...) if sizes do not match, or a replacement has more than 1024 bytes.
  explicit Charsmap(std::string_view bytes = {});
  bool empty() const { return units_.empty(); }
  struct Rule {
    size_t length;           ///< number of bytes of the text that the rule replaces
    std::string_view value;  ///< the replacement; valid as long as the map
  };
  /// Return the rule for the shortest and for the longest prefix of `text` that has a rule; no value if none has.
  std::optional<Rule> shortest(std::string_view text) const;
  std::optional<Rule> longest(std::string_view text) const;

 private:
  template <class Found>
  void prefixes(std::string_view text, const Found& found) const;
  std::string_view value_at(uint32_t offset) const;
  std::vector<uint32_t> units_;
  std::string values_;  // replacement texts, each terminated by a zero byte
};

}  // namespace colossal::text
