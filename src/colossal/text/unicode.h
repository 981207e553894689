// Decoding of UTF-8, one character at a time, for arbitrary bytes; and the Unicode properties that tokenizers need, in
// version 15.0 (of utf8proc 2.8; a later utf8proc has a later version). The package `tokenizers` takes classes from
// three libraries with different versions. docs/reference/tokenizers.md lists the resulting differences.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace colossal::text {

enum class Utf8 {
  Complete,    ///< a valid character
  Incomplete,  ///< the start of a valid character: more bytes are needed
  Invalid,     ///< cannot become a character, whatever follows
};

struct Utf8Character {
  Utf8 kind;
  size_t length;  ///< number of bytes; for Invalid the longest prefix that a decoder replaces by one U+FFFD
};

/// Returns the character at the front of `text`, which must not be empty. Overlong forms, surrogates and values above
/// U+10FFFF are invalid.
Utf8Character first_character(std::string_view text);

/// Returns true if `text` consists of valid characters. Cost: one pass over the bytes, fast for ASCII.
bool is_utf8(std::string_view text);

/// One character of arbitrary text. Bytes that are not UTF-8 are U+FFFD, one for each longest prefix that a decoder
/// replaces.
struct CodePoint {
  uint32_t value;
  size_t length;  ///< number of bytes in the text
};

/// Returns the character at the front of `text`, which must not be empty.
CodePoint first_code_point(std::string_view text);
/// Appends a code point in UTF-8.
void append_utf8(std::string& text, uint32_t code_point);

bool is_letter(uint32_t c);             ///< general category L
bool is_number(uint32_t c);             ///< general category N
bool is_mark(uint32_t c);               ///< general category M
bool is_nonspacing_mark(uint32_t c);    ///< general category Mn
bool is_punctuation(uint32_t c);        ///< general category P, and every ASCII sign that is not a letter or digit
bool is_space(uint32_t c);              ///< White_Space
bool is_word(uint32_t c);               ///< \w of UTS 18: Alphabetic, marks, decimal digits, connectors, joiners
bool is_control_or_format(uint32_t c);  ///< general categories Cc, Cf and Co
/// Returns true for the blocks that BERT regards as Chinese characters
/// (https://github.com/google-research/bert/blob/master/tokenization.py).
bool is_chinese(uint32_t c);
/// Returns the number of bytes of `text` without the white space at its end.
size_t size_without_space(std::string_view text);
/// Appends the lower case of a single character; for U+0130 these are two characters.
void append_lower(std::string& text, uint32_t c);

enum class NormalForm { Nfc, Nfd, Nfkc, Nfkd };
/// Returns the normalization form of a text. Cost: O(n log n), whatever the order of its marks.
std::string normalized(std::string_view text, NormalForm form);

/// Returns the size in bytes of the extended grapheme cluster at the front of `text`, which must not be empty.
size_t first_grapheme(std::string_view text);

}  // namespace colossal::text
