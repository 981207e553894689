// Builders of tokenizer files, byte by byte: SentencePiece messages, character maps, tiktoken ranks.
//
//   folder.write("a.model", made::kControls + made::piece("a", -1) + made::trainer(1));
#pragma once
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::text::made {

inline const std::string kMark = "\xE2\x96\x81";

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}

/// Return a protocol buffer field that holds an integer, and one that holds bytes.
inline std::string number(int field, uint64_t value) { return varint(field << 3) + varint(value); }
inline std::string message(int field, const std::string& bytes) {
  return varint(field << 3 | 2) + varint(bytes.size()) + bytes;
}

/// Returns a piece of a SentencePiece model. Types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
inline std::string piece(const std::string& text, float score, int type = 1) {
  std::string bits;
  for (int i = 0; i < 4; ++i) bits += static_cast<char>(std::bit_cast<uint32_t>(score) >> 8 * i);
  return message(1, message(1, text) + varint(2 << 3 | 5) + bits + number(3, type));
}

/// The pieces with the ids 0, 1 and 2.
inline const std::string kControls = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);

/// Returns the trainer's section. Kinds: 1 unigram, 2 BPE, 3 word, 4 char.
inline std::string trainer(int kind, const std::string& more = "") { return message(2, number(3, kind) + more); }

/// Returns a rank file of all bytes, then "aa", "ab", "aab" in this order.
inline std::string ranks() {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string lines;
  for (int byte = 0; byte < 256; ++byte)
    lines += std::string{kDigits[byte >> 2], kDigits[(byte & 3) << 4]} + "== " + std::to_string(byte) + "\n";
  return lines + "YWE= 256\nYWI= 257\nYWFi 258\n";
}

/// Returns a character map with one rule, which replaces the single byte `from` by `to`.
inline std::string charsmap(char from, const std::string& to) {
  std::vector<uint32_t> units(256);
  const auto byte = static_cast<unsigned char>(from);
  units[0] = 1u << 10;  // the children of the root are at 1 ^ byte
  const uint32_t child = 1 ^ byte, leaf = child ^ 2;
  units[child] = (2u << 10) | (1u << 8) | byte;  // a rule ends here; its value is at child ^ 2
  units[leaf] = 1u << 31;                        // offset of the value: 0
  const uint32_t size = 1024;
  std::string bytes(reinterpret_cast<const char*>(&size), 4);
  bytes.append(reinterpret_cast<const char*>(units.data()), size);
  return bytes + to + std::string(1, '\0');
}

inline std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (count += 8; count >= 6; count -= 6) text += kDigits[bits >> (count - 6) & 63];
  }
  if (count > 0) text += kDigits[bits << (6 - count) & 63];
  return text;
}

}  // namespace colossal::text::made
