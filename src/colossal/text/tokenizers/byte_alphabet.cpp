#include "colossal/text/tokenizers/byte_alphabet.h"

#include <array>

#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

constexpr int kCharacters = 256 + 68;  // 68 bytes are not printable

constexpr bool is_printable(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr std::array<int, 256> character_table() {
  std::array<int, 256> table{};
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) table[byte] = is_printable(byte) ? byte : next++;
  return table;
}

constexpr std::array<int, kCharacters> byte_table() {
  std::array<int, kCharacters> table{};
  for (int& byte : table) byte = -1;
  for (int byte = 0; byte < 256; ++byte) table[character_table()[byte]] = byte;
  return table;
}

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  static constexpr auto kTable = character_table();
  std::string text;
  for (const char c : bytes) {
    const int character = kTable[static_cast<unsigned char>(c)];
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xC0 | character >> 6);
      text += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return text;
}

namespace {

/// Returns the byte that the character stands for; -1 = none.
int byte_of(uint32_t character) {
  static constexpr auto kTable = byte_table();
  return character < kCharacters ? kTable[character] : -1;
}

}  // namespace

bool is_byte_alphabet(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = first_code_point(text.substr(at));
    if (byte_of(c.value) < 0) return false;
    at += c.length;
  }
  return true;
}

std::string from_byte_alphabet(std::string_view text) {
  if (!is_byte_alphabet(text)) return std::string(text);
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = first_code_point(text.substr(at));
    bytes += static_cast<char>(byte_of(c.value));
    at += c.length;
  }
  return bytes;
}

}  // namespace colossal::text
