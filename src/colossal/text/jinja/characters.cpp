#include "colossal/text/jinja/characters.h"

#include <string.h>
#include <utf8proc.h>

#include <algorithm>

#include "colossal/text/unicode.h"

namespace colossal::text::jinja {
namespace {

utf8proc_category_t category(uint32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_upper_character(uint32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU || (utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0);
}

bool is_lower_character(uint32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || (utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0);
}

bool is_title_character(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }
bool is_cased(uint32_t c) { return is_upper_character(c) || is_lower_character(c) || is_title_character(c); }

void append_upper(std::string& out, uint32_t c) {
  if (c == 0xDF) {
    out += "SS";
    return;
  }
  append_utf8(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, uint32_t c) {
  if (c == 0xDF) {
    out += "Ss";
    return;
  }
  append_utf8(out, static_cast<uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

/// Returns true for accents and similar characters, which do not end a word.
bool is_ignored_in_words(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_MN || c == '\''; }

/// Returns true if the word continues at byte `at`.
bool goes_on(std::string_view text, size_t at) {
  while (at < text.size()) {
    const CodePoint c = first_code_point(text.substr(at));
    if (!is_ignored_in_words(c.value)) return is_cased(c.value);
    at += c.length;
  }
  return false;
}

template <class Visit>
void for_characters(std::string_view text, Visit visit) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    visit(c.value, i, c.length);
    i += c.length;
  }
}

bool is_of(uint32_t c, Class asked) {
  const utf8proc_category_t is = category(c);
  const bool decimal = is == UTF8PROC_CATEGORY_ND;
  const bool superscript = c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0x2070 && c <= 0x2089 && c != 0x2071) ||
                           (c >= 0x2460 && c <= 0x2468);
  switch (asked) {
    case Class::Alpha:
      return is_letter(c);
    case Class::Alnum:
      return is_letter(c) || is_number(c);
    case Class::Decimal:
      return decimal;
    case Class::Digit:
      return decimal || superscript;
    case Class::Numeric:
      return is_number(c);
    case Class::Space:
      return is_white(c);
    case Class::Printable:
      return is_printable(c);
    default:
      return false;
  }
}

bool is_in_case(std::string_view text, Class asked) {
  bool cased = false, fits = true, after_cased = false;
  for_characters(text, [&](uint32_t c, size_t, size_t) {
    const bool is_upper = is_upper_character(c) || is_title_character(c), is_lower = is_lower_character(c);
    if (asked == Class::Lower) fits &= !is_upper;
    if (asked == Class::Upper) fits &= !is_lower && !is_title_character(c);
    if (asked == Class::Title) fits &= is_upper ? !after_cased : !is_lower || after_cased;
    after_cased = is_upper || is_lower;
    cased |= asked == Class::Lower ? is_lower : asked == Class::Upper ? is_upper : is_upper || is_lower;
  });
  return cased && fits;
}

bool is_identifier(std::string_view text) {
  bool fits = !text.empty();
  for_characters(text, [&](uint32_t c, size_t at, size_t) {
    fits &= c == '_' || is_letter(c) || category(c) == UTF8PROC_CATEGORY_NL ||
            (at > 0 && (is_word(c) && c != 0x200C && c != 0x200D));
  });
  return fits;
}

}  // namespace

int64_t count_characters(std::string_view text) {
  const bool is_ascii =
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (is_ascii) return static_cast<int64_t>(text.size());
  int64_t count = 0;
  for_characters(text, [&](uint32_t, size_t, size_t) { ++count; });
  return count;
}

size_t character_length(std::string_view text, size_t at) {
  if (static_cast<unsigned char>(text[at]) < 0x80) return 1;
  return first_code_point(text.substr(at)).length;
}

size_t byte_of_character(std::string_view text, int64_t index, bool is_ascii) {
  if (is_ascii) return static_cast<size_t>(index);
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += character_length(text, at);
  return at;
}

bool is_white(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(uint32_t c) {
  if (c < 0x7F) return c >= 0x20;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_class(std::string_view text, Class asked) {
  if (asked == Class::Identifier) return is_identifier(text);
  if (asked == Class::Lower || asked == Class::Upper || asked == Class::Title) return is_in_case(text, asked);
  bool fits = !text.empty() || asked == Class::Printable;
  for_characters(text, [&](uint32_t c, size_t, size_t) { fits = fits && is_of(c, asked); });
  return fits;
}

std::optional<int> decimal_digit(uint32_t c) {
  const auto is_digit = [](uint32_t of) { return category(of) == UTF8PROC_CATEGORY_ND; };
  if (!is_digit(c)) return std::nullopt;
  uint32_t zero = c;  // digits form runs of ten that start at a zero; some runs are adjacent
  while (is_digit(zero - 1)) --zero;
  return static_cast<int>((c - zero) % 10);
}

std::string_view strip_white(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const CodePoint c = first_code_point(text);
    if (!is_white(c.value)) break;
    text.remove_prefix(c.length);
  }
  while (right && !text.empty()) {
    size_t at = text.size() - 1;
    while (at > 0 && text.size() - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    const CodePoint c = first_code_point(text.substr(at));
    if (at + c.length != text.size() || !is_white(c.value)) break;
    text.remove_suffix(c.length);
  }
  return text;
}

std::string_view strip_characters(std::string_view text, std::string_view chars, bool left, bool right) {
  const auto is_there = [&](std::string_view character) { return find(chars, character) != std::string_view::npos; };
  while (left && !text.empty()) {
    const size_t length = character_length(text, 0);
    if (!is_there(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    size_t at = text.size() - 1;
    while (at > 0 && text.size() - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (at + character_length(text, at) != text.size()) at = text.size() - 1;
    if (!is_there(text.substr(at))) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

std::string lower(std::string_view text) {
  std::string out;
  bool in_word = false;
  for_characters(text, [&](uint32_t c, size_t at, size_t length) {
    if (c == 0x3A3 && in_word && !goes_on(text, at + length))
      append_utf8(out, 0x3C2);  // sigma at the end of a word
    else
      append_lower(out, c);
    if (!is_ignored_in_words(c)) in_word = is_cased(c);
  });
  return out;
}

std::string casefold(std::string_view text) {
  std::string out;
  for_characters(text, [&](uint32_t c, size_t, size_t) {
    utf8proc_int32_t folded[8];
    int boundary = 0;
    const auto size =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 8, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < size; ++i) append_utf8(out, static_cast<uint32_t>(folded[i]));
  });
  return out;
}

std::string upper(std::string_view text) {
  std::string out;
  for_characters(text, [&](uint32_t c, size_t, size_t) { append_upper(out, c); });
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const CodePoint c = first_code_point(text);
  std::string out;
  append_title(out, c.value);
  return out + lower(text.substr(c.length));
}

std::string swap_case(std::string_view text) {
  std::string out;
  for_characters(text, [&](uint32_t c, size_t, size_t) {
    if (is_upper_character(c))
      append_lower(out, c);
    else
      append_upper(out, c);
  });
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool after_cased = false;
  for_characters(text, [&](uint32_t c, size_t, size_t) {
    if (after_cased)
      append_lower(out, c);
    else
      append_title(out, c);
    after_cased = is_cased(c);
  });
  return out;
}

size_t find(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

size_t find_last(std::string_view text, std::string_view part, size_t end) {
  text = text.substr(0, end);
  if (part.empty()) return text.size();
  // The reversed text is searched forwards, because find() takes linear time.
  const std::string turned(text.rbegin(), text.rend()), turned_part(part.rbegin(), part.rend());
  const size_t found = find(turned, turned_part);
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

int64_t count(std::string_view text, std::string_view part) {
  if (part.empty()) return count_characters(text) + 1;
  int64_t times = 0;
  for (size_t at = find(text, part); at != std::string_view::npos; at = find(text, part, at + part.size())) ++times;
  return times;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
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
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace colossal::text::jinja
