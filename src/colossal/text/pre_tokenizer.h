// What happens to text before byte pair encoding: the normalizer and pre_tokenizer sections of a tokenizer.json.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace colossal::text {

inline constexpr char kMetaspace[] = "\xE2\x96\x81";  ///< U+2581, which stands for a space

/// Rewrites text. Understood: null, Prepend, Replace of a string, Sequence.
class Normalizer {
 public:
  /// Errors: throws Error("tokenizer", ...) naming a type that is not understood.
  explicit Normalizer(const nlohmann::json& section);
  std::string operator()(std::string text) const;

 private:
  void add(const nlohmann::json& section);
  std::vector<std::function<std::string(const std::string&)>> steps_;
};

/// Cuts text in words, none of which a merge crosses. Understood: null, ByteLevel, Split, Digits, Metaspace, Sequence.
class PreTokenizer {
 public:
  /// Errors: throws Error("tokenizer", ...) naming a type or behaviour that is not understood.
  explicit PreTokenizer(const nlohmann::json& section);
  /// `first`: the text starts what is encoded, it does not follow a special token.
  std::vector<std::string> operator()(const std::string& text, bool first) const;
  /// Words come out in the byte alphabet.
  bool is_byte_level() const { return byte_level_; }

 private:
  using Step = std::function<void(const std::string& piece, bool first, std::vector<std::string>& out)>;
  void add(const nlohmann::json& section);
  void add_byte_level(const nlohmann::json& section);
  void add_split(const nlohmann::json& section);
  void add_metaspace(const nlohmann::json& section);
  std::vector<Step> steps_;
  bool byte_level_ = false;
};

/// `text` with every `from` replaced by `to`.
std::string replaced(const std::string& text, const std::string& from, const std::string& to);

}  // namespace colossal::text
