// How text is cut in words, none of which a merge crosses: the pre_tokenizer section of a tokenizer.json.
//
//   const PreTokenizer cut(tokenizer["pre_tokenizer"], Spelling::Bytes);
//   Words words;
//   cut("two words", true, words);  // words.list: "two", " words"
#pragma once
#include <deque>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/word_scanner.h"

namespace colossal::text {

/// A part of a text, or of a string in Words.
struct Word {
  std::string_view text;
  bool at_start;  ///< the text starts what is encoded, it does not follow a special token or another word
};

/// Views of the text, or of `made` where a step wrote something else.
struct Words {
  std::vector<Word> list;
  std::deque<std::string> made;
};

/// How words of a byte-level vocabulary come out.
enum class Spelling { Bytes, Alphabet };

/// Understood: null, Sequence, ByteLevel, Split, Metaspace, Whitespace, WhitespaceSplit, BertPreTokenizer, Punctuation,
/// Digits, CharDelimiterSplit, FixedLength, each with all its options.
class PreTokenizer {
 public:
  /// `spelled`: the text comes in the byte alphabet already (Normalizer::is_byte_level).
  /// Errors: throws Error("tokenizer", ...) naming a type or behavior that is not understood.
  explicit PreTokenizer(const nlohmann::json& section, Spelling spelling = Spelling::Alphabet, bool spelled = false);
  /// Replaces what is in `words`, none of which is empty. `text` must live as long.
  void operator()(std::string_view text, bool at_start, Words& words) const;
  /// Words come out as bytes of the text; else, where a step is ByteLevel, in the byte alphabet.
  bool makes_bytes() const { return byte_level_ && bytes_wanted_; }
  /// All it does is what this scanner does, and the words come out as bytes.
  const std::optional<WordScanner>& scanner() const { return scanner_; }

 private:
  using Step = std::function<void(const Word& word, Words& out)>;
  void add(const nlohmann::json& section);
  void add_byte_level(const nlohmann::json& section);
  void add_metaspace(const nlohmann::json& section);
  void find_scanner(const nlohmann::json& section);
  std::vector<Step> steps_;
  std::optional<WordScanner> scanner_;
  bool byte_level_ =
      false;  // some step or the normalizer spells in the alphabet, and none writes other characters after it
  bool ends_in_alphabet_ = false;  // the last step is the one that spells: it is left out where bytes are wanted
  bool bytes_wanted_;
};

}  // namespace colossal::text
