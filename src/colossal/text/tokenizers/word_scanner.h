// Words of common byte-level vocabularies, found without a regular expression: a scanner applies the patterns character
// by character.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "colossal/text/tokenizers/regex.h"

namespace colossal::text {

/// A scanner of words of GPT-2's kind. A word is a contraction, or a run of letters, of digits or of other characters,
/// in some rules with one character before it. Otherwise it is white space, whose last character belongs to the next
/// word.
class WordScanner {
 public:
  /// Returns the scanner of a pattern if it is one of GPT-2's, LLaMA 3's and Qwen 2's as files spell them. In Rust's
  /// dialect it may also be cl100k_base's, whose {1,3}+ is possessive only there. No value for other patterns.
  static std::optional<WordScanner> of(const std::string& pattern, Dialect dialect);
  /// Returns the scanner of GPT-2's pattern, which the ByteLevel pre-tokenizer uses.
  static WordScanner gpt2();
  /// Returns the size in bytes of the word at the front of `text`, which must not be empty. Bytes that are not UTF-8
  /// are neither letters, digits nor white space.
  size_t first_word(std::string_view text) const;

 private:
  struct Rules {
    bool any_before_letters = false;  ///< any character but letters, digits and line ends may precede letters, not only
                                      ///< a space
    int digits = 0;          ///< maximum number of digits in a word, without a space before them; 0 = no limit, and a
                             ///< space may precede them
    bool lines = false;      ///< words of other characters include line ends after them, and white space ends after its
                             ///< last line end
    bool keeps_end = false;  ///< white space at the end of the text is one word, whatever it consists of
    bool any_case = false;   ///< contractions match in upper and lower case
  };
  struct Character;
  explicit WordScanner(Rules rules);
  Character character(std::string_view text, size_t at) const;
  size_t run(std::string_view text, size_t at, uint8_t kind) const;
  size_t contraction(std::string_view text) const;
  size_t space(std::string_view text) const;
  Rules rules_;
  const uint8_t* kinds_;  // kind of every code point
};

}  // namespace colossal::text
