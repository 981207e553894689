// Normalizers, which change a text before it is split: the normalizer section of a tokenizer.json.
//
//   const Normalizer normalizer(tokenizer["normalizer"]);
//   const Normalizer::Result lower = normalizer("Ab");
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::text {

/// SentencePiece's precompiled character map: replacements of strings that are applied before a text is split. The file
/// holds a trie (a double array, in the format of the library Darts-clone) followed by the replacement texts.
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

inline constexpr char kMetaspace[] = "\xE2\x96\x81";  ///< U+2581, which stands for a space

/// A normalizer of the `tokenizers` package. Supported types: null, Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip,
/// StripAccents, BertNormalizer, Replace, Prepend, Nmt, Precompiled, ByteLevel. Types that work on characters replace
/// bytes that are not UTF-8 by U+FFFD.
class Normalizer {
 public:
  /// Errors: throws Error("tokenizer", ...) naming the type that is not supported.
  explicit Normalizer(const nlohmann::json& section);
  /// A normalized text.
  struct Result {
    std::string text;
    bool keeps_front = true;  ///< true if the start of the result is the start of the text; false if characters before
                              ///< it were removed
    /// If `places` is true, the byte of the original text from which each byte of `text` was made.
    std::vector<size_t> origins{};
    bool places = false;
  };
  /// Normalizes a text. If `places` is true, the result has the origins of its bytes.
  Result operator()(std::string text, bool places = false) const;
  bool empty() const { return steps_.empty(); }
  /// Returns true if the last step spells the text in the byte alphabet.
  bool is_byte_level() const { return byte_level_; }

 private:
  using Step = std::function<void(Result&)>;
  void add(const nlohmann::json& section);
  std::vector<Step> steps_;
  bool byte_level_ = false;
};

/// Returns `text` with every `from` replaced by `to`.
std::string replaced(const std::string& text, const std::string& from, const std::string& to);

}  // namespace colossal::text
