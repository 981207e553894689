#include "colossal/base/html.h"

#include <cstddef>
#include <cstdint>

namespace colossal {
namespace {

/// Returns the length in bytes of the UTF-8 character at `begin`; 0 if there is none (RFC 3629: no overlong forms, no
/// surrogates).
size_t character_length(std::string_view text, size_t begin) {
  const auto first = static_cast<unsigned char>(text[begin]);
  if (first < 0x80) return 1;
  const size_t length = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (length == 0 || begin + length > text.size()) return 0;
  uint32_t code = first & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[begin + i]);
    if ((next & 0xC0) != 0x80) return 0;
    code = code << 6 | (next & 0x3F);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return overlong || surrogate || code > 0x10FFFF ? 0 : length;
}

}  // namespace

std::string html_text(std::string_view text) {
  constexpr const char* kReplacement = "\xEF\xBF\xBD";
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = character_length(text, i);
    const char c = text[i];
    const bool control = length == 1 && ((c >= 0 && c < 0x20 && c != '\n' && c != '\t') || c == 0x7F);
    if (length == 0 || control) {
      out += kReplacement;
      ++i;
      continue;
    }
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.append(text, i, length);
    }
    i += length;
  }
  return out;
}

}  // namespace colossal
