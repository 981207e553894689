// UTF-8, one character at a time, for text that may be anything.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace colossal::text {

enum class Utf8 {
  Complete,    ///< a valid character
  Incomplete,  ///< the start of a valid character: more bytes are needed
  Invalid,     ///< cannot become one, whatever follows
};

struct Utf8Character {
  Utf8 kind;
  size_t length;  ///< bytes of it; of Invalid: the longest prefix that a decoder replaces by one U+FFFD
};

/// The character at the front of `text`, which must not be empty. Overlong forms, surrogates and values past U+10FFFF
/// are invalid.
Utf8Character first_character(std::string_view text);

/// Whether all of it is valid characters. Cost: a pass over the bytes, quick where they are ASCII.
bool is_utf8(std::string_view text);

}  // namespace colossal::text
