// Normalizers, which change a text before it is split: the normalizer section of a tokenizer.json.
//
//   const Normalizer normalizer(tokenizer["normalizer"]);
//   const Normalizer::Result lower = normalizer("Ab");
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace colossal::text {

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
  };
  Result operator()(std::string text) const;
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
