// GPT-2's byte alphabet: bytes spelled as printable characters. Byte-level vocabularies are written in it.
#pragma once
#include <string>
#include <string_view>

namespace colossal::text {

/// Returns the bytes in the byte alphabet. 33-126, 161-172 and 174-255 stand for themselves. The other bytes are
/// spelled U+0100, U+0101, ... in order, so a space is U+0120.
std::string to_byte_alphabet(std::string_view bytes);
/// Returns true if every character of `text` stands for a byte.
bool is_byte_alphabet(std::string_view text);
/// Returns the bytes that `text` spells. A text with characters outside the alphabet is returned unchanged.
std::string from_byte_alphabet(std::string_view text);

}  // namespace colossal::text
