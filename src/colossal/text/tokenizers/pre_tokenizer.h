// Pre-tokenizers, which split a text into words that no merge crosses: the pre_tokenizer section of a tokenizer.json.
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

#include "colossal/text/tokenizers/word_scanner.h"

namespace colossal::text {

/// A part of a text, or of a string in Words::made.
struct Word {
  std::string_view text;
  bool at_start;  ///< true at the start of the encoded text; false after a special token or another word
  const size_t* origins = nullptr;  ///< origin of each byte of `text`; null = they are not wanted

  /// Returns bytes [begin, end) as a word.
  Word part(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), at_start && begin == 0, origins == nullptr ? nullptr : origins + begin};
  }
};

/// The words of a text. They are views of the text, or of `made` if a step changed it.
struct Words {
  struct Made {
    std::string text;
    std::vector<size_t> origins;
  };
  std::vector<Word> list;
  std::deque<Made> made;
};

/// The spelling of words of a byte-level vocabulary: raw bytes, or the byte alphabet.
enum class Spelling { Bytes, Alphabet };

/// A pre-tokenizer of the `tokenizers` package. Supported types, each with all its options: null, Sequence, ByteLevel,
/// Split, Metaspace, Whitespace, WhitespaceSplit, BertPreTokenizer, Punctuation, Digits, CharDelimiterSplit,
/// FixedLength.
class PreTokenizer {
 public:
  /// `spelled` is true if the text is already in the byte alphabet (Normalizer::is_byte_level).
  /// Errors: throws Error("tokenizer", ...) naming a type or behavior that is not supported.
  explicit PreTokenizer(const nlohmann::json& section, Spelling spelling = Spelling::Alphabet, bool spelled = false);
  /// Replaces `words` by the words of `text`, none of which is empty. `text` must outlive `words`. So must `origins`,
  /// one number for each byte of `text`, from which words get theirs; null = not wanted.
  void operator()(std::string_view text, bool at_start, Words& words, const size_t* origins = nullptr) const;
  /// Returns true if words are bytes of the text. If false, a ByteLevel step spells them in the byte alphabet.
  bool makes_bytes() const { return byte_level_ && bytes_wanted_; }
  /// Returns the scanner that does all the work of this pre-tokenizer and returns words as bytes; no value if there is
  /// none.
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
      false;  // a step or the normalizer spells in the alphabet, and no later step writes other characters
  bool ends_in_alphabet_ = false;  // the spelling step is the last one; it is skipped if bytes are wanted
  bool bytes_wanted_;
};

}  // namespace colossal::text
