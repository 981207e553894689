#include "colossal/base/base64.h"

#include <cstdint>

namespace colossal {

namespace {

constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = i; j < i + 3; ++j) group = group << 8 | (j < bytes.size() ? static_cast<uint8_t>(bytes[j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += i + j > bytes.size() ? '=' : kLetters[group >> (18 - 6 * j) & 63];
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const auto padding = static_cast<size_t>(text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    const size_t letters = i + 4 == text.size() ? 4 - padding : 4;
    uint32_t group = 0;
    for (size_t j = 0; j < 4; ++j) {
      const size_t value = j < letters ? kLetters.find(text[i + j]) : 0;
      if (value == std::string_view::npos) return std::nullopt;
      group = group << 6 | static_cast<uint32_t>(value);
    }
    for (size_t j = 0; j + 1 < letters; ++j) bytes += static_cast<char>(group >> (16 - 8 * j) & 255);
  }
  return bytes;
}

}  // namespace colossal
