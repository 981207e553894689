#include "colossal/text/byte_alphabet.h"

#include <array>

#include "colossal/text/utf8.h"

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

std::string from_byte_alphabet(std::string_view text) {
  static constexpr auto kTable = byte_table();
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const size_t length = first_character(text.substr(at)).length;
    int character = static_cast<unsigned char>(text[at]);
    if (length == 2 && (character & 0xE0) == 0xC0) character = (character & 0x1F) << 6 | (text[at + 1] & 0x3F);
    const bool known = length <= 2 && character < kCharacters && kTable[character] >= 0;
    bytes += known ? std::string(1, static_cast<char>(kTable[character])) : std::string(text.substr(at, length));
    at += length;
  }
  return bytes;
}

}  // namespace colossal::text
