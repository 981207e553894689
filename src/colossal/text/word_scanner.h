// The words of the byte-level vocabularies of the field, found without a regular expression: what their patterns say,
// a character at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "colossal/text/regex.h"

namespace colossal::text {

/// Words of GPT-2's kind: contractions, letters, digits or others perhaps with one character before them, white space
/// that leaves its last character to what follows.
class WordScanner {
 public:
  /// The scanner of a pattern, if it is one of GPT-2's, LLaMA 3's and Qwen 2's as files spell them, or, in Rust's
  /// dialect, cl100k_base's: its {1,3}+ is possessive there alone.
  static std::optional<WordScanner> of(const std::string& pattern, Dialect dialect);
  /// GPT-2's, which the ByteLevel pre-tokenizer uses.
  static WordScanner gpt2();
  /// Bytes of the word at the front of `text`, which must not be empty. Bytes that are not UTF-8 are no letters, digits
  /// or white space.
  size_t first_word(std::string_view text) const;

 private:
  struct Rules {
    bool any_before_letters = false;  ///< not a space alone, but whatever is no letter, digit or line's end
    int digits = 0;          ///< of a word at most, without a space before them; 0: as many as there are, with one
    bool lines = false;      ///< others take ends of lines along, and white space ends with the last of them
    bool keeps_end = false;  ///< white space at the end of the text is one word, whatever it is
    bool any_case = false;   ///< of contractions
  };
  struct Character;
  explicit WordScanner(Rules rules);
  Character character(std::string_view text, size_t at) const;
  size_t run(std::string_view text, size_t at, uint8_t kind) const;
  size_t contraction(std::string_view text) const;
  size_t space(std::string_view text) const;
  Rules rules_;
  const uint8_t* kinds_;  // of every code point
};

}  // namespace colossal::text
