// UTF-8 decoding, one character at a time, for arbitrary bytes.
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

}  // namespace colossal::text
