#include "colossal/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace colossal::text {
namespace {

constexpr uint32_t kCodePoints = 0x110000;
constexpr uint32_t kTabled = 0x10000;  // the basic plane has almost all characters of texts
constexpr uint32_t kReplacementCharacter = 0xFFFD;

enum Class : uint8_t {
  kLetter = 1,
  kNumber = 2,
  kMark = 4,
  kNonspacing = 8,
  kPunctuation = 16,
  kSpace = 32,
  kWord = 64,
  kControlOrFormat = 128,
};

bool has_white_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/// Returns true for letters in circles and squares, which are symbols with the property Other_Alphabetic.
bool is_alphabetic_symbol(uint32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

uint8_t classes_of_category(utf8proc_category_t category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter | kWord;
    case UTF8PROC_CATEGORY_MN:
      return kMark | kNonspacing | kWord;
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark | kWord;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      return kNumber | kWord;
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_PC:
      return kPunctuation | kWord;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kPunctuation;
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
      return kControlOrFormat;
    default:
      return 0;
  }
}

uint8_t classes_of(uint32_t c) {
  uint8_t classes = classes_of_category(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
  if (has_white_space(c)) classes |= kSpace;
  if (is_alphabetic_symbol(c) || c == 0x200C || c == 0x200D) classes |= kWord;
  const bool ascii_sign = c > 32 && c < 127 && !(classes & (kLetter | kNumber));
  if (ascii_sign) classes |= kPunctuation;
  return classes;
}

/// Returns the classes of the code points below kTabled, one byte each, so that a look-up is a single load. A table of
/// all code points would take 10 ms at the start of a program.
std::unique_ptr<const uint8_t[]> make_table() {
  auto table = std::make_unique<uint8_t[]>(kTabled);
  for (uint32_t c = 0; c < kTabled; ++c) table[c] = classes_of(c);
  return table;
}

bool has(uint32_t c, uint8_t wanted) {
  static const std::unique_ptr<const uint8_t[]> table = make_table();
  if (c < kTabled) return (table[c] & wanted) != 0;
  return c < kCodePoints && (classes_of(c) & wanted) != 0;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

/// Appends the decomposition of a character.
void append_decomposed(std::vector<utf8proc_int32_t>& out, uint32_t c, int options) {
  utf8proc_int32_t parts[32];
  int boundary = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32,
                                             static_cast<utf8proc_option_t>(options), &boundary);
  if (count > 0 && count <= 32) {
    out.insert(out.end(), parts, parts + count);
  } else {
    out.push_back(static_cast<utf8proc_int32_t>(c));
  }
}

/// Sorts the marks after each character by their combining classes. utf8proc swaps neighbours instead, which takes
/// quadratic time on a hostile text with a million marks.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  for (size_t begin = 0; begin < text.size();) {
    if (combining_class(text[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(begin), text.begin() + static_cast<std::ptrdiff_t>(end),
                     [](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

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

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const Utf8Character first = first_character(text);
  if (first.kind != Utf8::Complete) return {kReplacementCharacter, first.length};
  if (first.length == 2) return {(byte(0) & 31) << 6 | (byte(1) & 63), 2};
  if (first.length == 3) return {(byte(0) & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63), 3};
  return {(byte(0) & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63), 4};
}

void append_utf8(std::string& text, uint32_t c) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) return add(c);
  if (c < 0x800) {
    add(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12);
    add(0x80 | (c >> 6 & 63));
  } else {
    add(0xF0 | c >> 18);
    add(0x80 | (c >> 12 & 63));
    add(0x80 | (c >> 6 & 63));
  }
  add(0x80 | (c & 63));
}

bool is_chinese(uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_letter(uint32_t c) { return has(c, kLetter); }
bool is_number(uint32_t c) { return has(c, kNumber); }
bool is_mark(uint32_t c) { return has(c, kMark); }
bool is_nonspacing_mark(uint32_t c) { return has(c, kNonspacing); }
bool is_punctuation(uint32_t c) { return has(c, kPunctuation); }
bool is_space(uint32_t c) { return has(c, kSpace); }
bool is_word(uint32_t c) { return has(c, kWord); }
bool is_control_or_format(uint32_t c) { return has(c, kControlOrFormat); }

size_t size_without_space(std::string_view text) {
  size_t size = 0;
  for (size_t place = 0; place < text.size();) {
    const CodePoint c = first_code_point(text.substr(place));
    place += c.length;
    if (!is_space(c.value)) size = place;
  }
  return size;
}

void append_lower(std::string& text, uint32_t c) {
  if (c == 0x130) {
    text += "i\xCC\x87";  // i and a dot above
  } else {
    append_utf8(text, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

std::string normalized(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const bool compatible = form == NormalForm::Nfkc || form == NormalForm::Nfkd,
             composed = form == NormalForm::Nfc || form == NormalForm::Nfkc;
  const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint next = first_code_point(text.substr(at));
    append_decomposed(points, next.value, options);
    at += next.length;
  }
  order_marks(points);
  auto count = static_cast<utf8proc_ssize_t>(points.size());
  if (composed)
    count = utf8proc_normalize_utf32(points.data(), count,
                                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  std::string out;
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, static_cast<uint32_t>(points[i]));
  return out;
}

size_t first_grapheme(std::string_view text) {
  CodePoint last = first_code_point(text);
  size_t length = last.length;
  utf8proc_int32_t state = 0;
  while (length < text.size()) {
    const CodePoint next = first_code_point(text.substr(length));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.value),
                                         static_cast<utf8proc_int32_t>(next.value), &state))
      break;
    length += next.length;
    last = next;
  }
  return length;
}

}  // namespace colossal::text
