#include "colossal/text/tokenizers/word_scanner.h"

#include <memory>

#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

constexpr uint32_t kAllCodePoints = 0x110000;

enum CharacterKind : uint8_t { kLetterKind = 1, kNumberKind = 2, kSpaceKind = 4, kOtherKind = 8 };

/// Returns the kind of every code point, one byte each, so that a look-up is a single load.
const uint8_t* kinds_of_characters() {
  static const std::unique_ptr<const uint8_t[]> kinds = [] {
    auto table = std::make_unique<uint8_t[]>(kAllCodePoints);
    for (uint32_t c = 0; c < kAllCodePoints; ++c)
      table[c] = is_letter(c) ? kLetterKind : is_number(c) ? kNumberKind : is_space(c) ? kSpaceKind : kOtherKind;
    return table;
  }();
  return kinds.get();
}

bool is_line_end(char c) { return c == '\r' || c == '\n'; }

}  // namespace

/// A character, or the end of the text (length 0, no kind).
struct WordScanner::Character {
  size_t length;
  uint8_t kind;
};

WordScanner::WordScanner(Rules rules) : rules_(rules), kinds_(kinds_of_characters()) {}

std::optional<WordScanner> WordScanner::of(const std::string& pattern, Dialect dialect) {
  if (pattern == kGpt2Words || pattern == kR50kWords) return gpt2();
  Rules rules{.any_before_letters = true, .digits = 3, .lines = true, .any_case = true};
  if (pattern == kCl100kWords && dialect == Dialect::Rust) {
    rules.keeps_end = true;
  } else if (pattern == kQwen2Words) {
    rules.digits = 1;
  } else if (pattern != kLlama3Words) {
    return std::nullopt;
  }
  return WordScanner(rules);
}

WordScanner WordScanner::gpt2() { return WordScanner(Rules{}); }

WordScanner::Character WordScanner::character(std::string_view text, size_t at) const {
  if (at >= text.size()) return {0, 0};
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {1, kinds_[byte]};
  const CodePoint c = first_code_point(text.substr(at));
  return {c.length, kinds_[c.value]};
}

/// Returns the end of the run of characters of a kind that starts at `at`.
size_t WordScanner::run(std::string_view text, size_t at, uint8_t kind) const {
  while (true) {
    while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) {
      if (kinds_[static_cast<unsigned char>(text[at])] != kind) return at;
      ++at;
    }
    const Character next = character(text, at);
    if (next.kind != kind) return at;
    at += next.length;
  }
}

/// Returns the size in bytes of 's, 't, 're, 've, 'm, 'll, 'd at the front; 0 = none. With any_case U+017F is also an
/// s.
size_t WordScanner::contraction(std::string_view text) const {
  if (text[0] != '\'' || text.size() < 2) return 0;
  const auto lower = [&](size_t i) -> char {
    if (i >= text.size()) return 0;
    return rules_.any_case && text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] + 32) : text[i];
  };
  const char a = lower(1), b = lower(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  return rules_.any_case && text.substr(1, 2) == "\xC5\xBF" ? 3 : 0;
}

size_t WordScanner::space(std::string_view text) const {
  size_t end = 0, last = 0, line = 0;  // end of the run, start of its last character, end of its last line break
  for (Character next; (next = character(text, end)).kind == kSpaceKind;) {
    last = end;
    end += next.length;
    if (is_line_end(text[last])) line = end;
  }
  if (end == text.size() && rules_.keeps_end) return end;
  if (rules_.lines && line > 0) return line;
  return end == text.size() || last == 0 ? end : last;
}

size_t WordScanner::first_word(std::string_view text) const {
  const Character first = character(text, 0);
  if (first.kind == kLetterKind) return run(text, first.length, kLetterKind);
  if (first.kind == kNumberKind) {
    if (rules_.digits == 0) return run(text, first.length, kNumberKind);
    size_t end = first.length;
    for (int count = 1; count < rules_.digits && character(text, end).kind == kNumberKind; ++count)
      end += character(text, end).length;
    return end;
  }
  if (const size_t length = contraction(text)) return length;
  const Character second = character(text, first.length);
  const bool blank = text[0] == ' ';
  if (second.kind == kLetterKind && (blank || (rules_.any_before_letters && !is_line_end(text[0]))))
    return run(text, first.length + second.length, kLetterKind);
  if (second.kind == kNumberKind && blank && rules_.digits == 0)
    return run(text, first.length + second.length, kNumberKind);
  if (first.kind == kOtherKind || (blank && second.kind == kOtherKind)) {
    size_t end = run(text, first.length, kOtherKind);
    while (rules_.lines && end < text.size() && is_line_end(text[end])) ++end;
    return end;
  }
  return space(text);
}

}  // namespace colossal::text
