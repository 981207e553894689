#include "colossal/text/tokenizers/json_section.h"

#include <array>

#include "colossal/base/error.h"

namespace colossal::text {
namespace {

constexpr char kBase64Digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::array<int8_t, 256> values_of_digits() {
  std::array<int8_t, 256> values;
  values.fill(-1);
  for (int8_t i = 0; i < 64; ++i) values[static_cast<unsigned char>(kBase64Digits[i])] = i;
  return values;
}

}  // namespace

std::optional<std::string> pattern_text(const nlohmann::json& section, const char* kind) {
  const auto pattern = section.find("pattern");
  if (pattern == section.end() || !pattern->is_object()) return std::nullopt;
  const auto text = pattern->find(kind);
  return text == pattern->end() ? std::nullopt : std::optional(text->get<std::string>());
}

Regex pattern_of(const nlohmann::json& section) {
  if (const auto regex = pattern_text(section, "Regex")) return Regex(*regex);
  const auto text = section.at("pattern").at("String").get<std::string>();
  require(!text.empty(), "tokenizer", "the pattern of a ", type_of(section), " must not be empty");
  return Regex::of_string(text);
}

std::string from_base64(std::string_view text) {
  static const std::array<int8_t, 256> values = values_of_digits();
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int8_t value = values[static_cast<unsigned char>(c)];
    require(value >= 0, "tokenizer", "base64 has no character of code ",
            static_cast<int>(static_cast<unsigned char>(c)));
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> count);
      bits &= (1u << count) - 1;
    }
  }
  require(count < 6, "tokenizer", "base64 ends within a byte");
  return bytes;
}

}  // namespace colossal::text
