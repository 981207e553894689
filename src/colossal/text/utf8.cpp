#include "colossal/text/utf8.h"

#include <algorithm>

namespace colossal::text {

Utf8Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8::Complete, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8::Invalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8::Incomplete, i};
    unsigned char low = 0x80,
                  high = 0xBF;  // the second byte alone decides on overlong forms, surrogates and the upper bound
    if (i == 1 && lead == 0xE0) low = 0xA0;
    if (i == 1 && lead == 0xED) high = 0x9F;
    if (i == 1 && lead == 0xF0) low = 0x90;
    if (i == 1 && lead == 0xF4) high = 0x8F;
    if (byte(i) < low || byte(i) > high) return {Utf8::Invalid, i};
  }
  return {Utf8::Complete, length};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    // ASCII bytes are skipped first, because most bytes of most texts are ASCII.
    const auto other = std::find_if(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) < 0; });
    text.remove_prefix(other - text.begin());
    if (text.empty()) return true;
    const Utf8Character next = first_character(text);
    if (next.kind != Utf8::Complete) return false;
    text.remove_prefix(next.length);
  }
  return true;
}

}  // namespace colossal::text
