#include "colossal/text/word_scanner.h"

#include "colossal/text/unicode.h"
#include "colossal/text/word_patterns.h"

namespace colossal::text {
namespace {

/// A character, or none (length 0) at the end.
CodePoint peek(std::string_view text, size_t at) {
  return at < text.size() ? first_code_point(text.substr(at)) : CodePoint{0, 0};
}

template <class Is>
size_t run(std::string_view text, size_t at, const Is& is, int most = 0) {
  for (int count = 0; most == 0 || count < most; ++count) {
    const CodePoint c = peek(text, at);
    if (c.length == 0 || !is(c.value)) break;
    at += c.length;
  }
  return at;
}

bool is_line_end(uint32_t c) { return c == '\r' || c == '\n'; }
bool is_other(uint32_t c) { return !is_letter(c) && !is_number(c) && !is_space(c); }

}  // namespace

std::optional<WordScanner> WordScanner::of(const std::string& pattern) {
  if (pattern == kGpt2Words || pattern == kR50kWords) return gpt2();
  Rules rules{.any_before_letters = true, .digits = 3, .lines = true, .any_case = true};
  if (pattern == kCl100kWords) {
    rules.keeps_end = true;
  } else if (pattern == kQwen2Words) {
    rules.digits = 1;
  } else if (pattern != kLlama3Words) {
    return std::nullopt;
  }
  return WordScanner(rules);
}

WordScanner WordScanner::gpt2() { return WordScanner(Rules{}); }

/// Bytes of 's, 't, 're, 've, 'm, 'll, 'd at the front; 0: none. U+017F is an s too, in any case.
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
  size_t end = 0, last = 0, line = 0;  // the run, where its last character starts, behind its last end of a line
  while (end < text.size()) {
    const CodePoint c = first_code_point(text.substr(end));
    if (!is_space(c.value)) break;
    last = end;
    end += c.length;
    if (is_line_end(c.value)) line = end;
  }
  if (end == text.size() && rules_.keeps_end) return end;
  if (rules_.lines && line > 0) return line;
  return end == text.size() || last == 0 ? end : last;
}

size_t WordScanner::first_word(std::string_view text) const {
  if (const size_t length = contraction(text)) return length;
  const CodePoint first = first_code_point(text);
  if (is_letter(first.value)) return run(text, first.length, is_letter);
  if (is_number(first.value)) return run(text, 0, is_number, rules_.digits);
  const CodePoint second = peek(text, first.length);
  const bool blank = first.value == ' ';
  if (second.length > 0 && is_letter(second.value) &&
      (blank || (rules_.any_before_letters && !is_line_end(first.value))))
    return run(text, first.length + second.length, is_letter);
  if (blank && rules_.digits == 0 && second.length > 0 && is_number(second.value))
    return run(text, first.length + second.length, is_number);
  if (is_other(first.value) || (blank && second.length > 0 && is_other(second.value))) {
    const size_t end = run(text, first.length, is_other);
    return rules_.lines ? run(text, end, is_line_end) : end;
  }
  return space(text);
}

}  // namespace colossal::text
