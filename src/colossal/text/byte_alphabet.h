// GPT-2's spelling of bytes as printable characters: byte-level vocabularies are written in it.
#pragma once
#include <string>
#include <string_view>

namespace colossal::text {

/// 33-126, 161-172 and 174-255 stand for themselves, the other bytes for U+0100, U+0101, ... in order: a space is
/// U+0120.
std::string to_byte_alphabet(std::string_view bytes);
/// Every character of it stands for a byte.
bool is_byte_alphabet(std::string_view text);
/// Back. A text with characters outside the alphabet stays as it is.
std::string from_byte_alphabet(std::string_view text);

}  // namespace colossal::text
