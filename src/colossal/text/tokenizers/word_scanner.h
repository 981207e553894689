// Words of common byte-level vocabularies: the patterns by which they split text, as their files spell them, and a
// scanner that applies the patterns character by character, without a regular expression.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "colossal/text/tokenizers/regex.h"

namespace colossal::text {

// See: https://github.com/openai/gpt-2/blob/master/src/encoder.py.
inline constexpr char kGpt2Words[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// See: https://github.com/openai/tiktoken/blob/main/tiktoken_ext/openai_public.py.
inline constexpr char kR50kWords[] =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
inline constexpr char kCl100kWords[] =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
inline constexpr char kO200kWords[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// See: https://github.com/meta-llama/llama3/blob/main/llama/tokenizer.py.
inline constexpr char kLlama3Words[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// See: https://huggingface.co/Qwen/Qwen2-0.5B/blob/main/tokenizer.json.
inline constexpr char kQwen2Words[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

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
