// What is done to text before it is cut: the normalizer section of a tokenizer.json.
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

/// Understood: null, Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, BertNormalizer, Replace, Prepend,
/// Nmt, Precompiled, ByteLevel. Those that look at characters make U+FFFD of bytes that are not UTF-8.
class Normalizer {
 public:
  /// Errors: throws Error("tokenizer", ...) naming a type that is not understood.
  explicit Normalizer(const nlohmann::json& section);
  struct Result {
    std::string text;
    bool keeps_front = true;  ///< nothing was taken from the front: what starts the result starts the text
  };
  Result operator()(std::string text) const;
  bool empty() const { return steps_.empty(); }
  /// Its last step spells text in the byte alphabet.
  bool is_byte_level() const { return byte_level_; }

 private:
  using Step = std::function<void(Result&)>;
  void add(const nlohmann::json& section);
  std::vector<Step> steps_;
  bool byte_level_ = false;
};

/// `text` with every `from` replaced by `to`.
std::string replaced(const std::string& text, const std::string& from, const std::string& to);

}  // namespace colossal::text
