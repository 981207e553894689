#include "colossal/text/jinja/text_parts.h"

#include <algorithm>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/unicode.h"

namespace colossal::text::jinja {
namespace {

/// Parts of a text whose memory is taken from the budget.
class Parts {
 public:
  explicit Parts(Budget& budget) : budget_(budget) {}
  void add(std::string_view part) {
    budget_.take_bytes(2 * sizeof part);  // a vector grows to twice its size
    list.push_back(part);
  }
  std::vector<std::string_view> list;

 private:
  Budget& budget_;
};

}  // namespace

std::vector<std::string_view> split_at_white(Budget& budget, std::string_view text, int64_t max, bool from_right) {
  Parts parts(budget);
  std::string_view rest = strip_white(text, true, true);
  if (!from_right) {
    while (!rest.empty()) {
      if (max-- == 0) {
        parts.add(strip_white(text.substr(static_cast<size_t>(rest.data() - text.data())), true, false));
        break;
      }
      size_t end = 0;
      while (end < rest.size() && !is_white(first_code_point(rest.substr(end)).value))
        end += character_length(rest, end);
      parts.add(rest.substr(0, end));
      rest = strip_white(rest.substr(end), true, false);
    }
    return parts.list;
  }
  const std::vector<std::string_view> all = split_at_white(budget, text, -1, false);
  if (max < 0 || static_cast<size_t>(max) >= all.size()) return all;
  const size_t first = all.size() - static_cast<size_t>(max);  // index of the first part that is split off
  const auto end = static_cast<size_t>(all[first - 1].data() - text.data()) + all[first - 1].size();
  parts.add(text.substr(0, end));
  for (size_t i = first; i < all.size(); ++i) parts.add(all[i]);
  return parts.list;
}

std::vector<std::string_view> split_at(Budget& budget, std::string_view text, std::string_view separator, int64_t max,
                                       bool from_right) {
  Parts parts(budget);
  if (!from_right) {
    size_t at = 0;
    for (size_t next; max != 0 && (next = find(text, separator, at)) != std::string_view::npos; --max) {
      parts.add(text.substr(at, next - at));
      at = next + separator.size();
    }
    parts.add(text.substr(at));
    return parts.list;
  }
  // Splits from the right by splitting the reversed text.
  budget.take_bytes(static_cast<int64_t>(text.size()));
  const std::string turned(text.rbegin(), text.rend()), turned_separator(separator.rbegin(), separator.rend());
  for (const std::string_view part : split_at(budget, turned, turned_separator, max, false)) {
    const auto behind = static_cast<size_t>(part.data() - turned.data()) + part.size();
    parts.add(text.substr(text.size() - behind, part.size()));
  }
  std::reverse(parts.list.begin(), parts.list.end());
  return parts.list;
}

std::vector<std::string_view> lines_of(Budget& budget, std::string_view text, bool keep_ends) {
  Parts lines(budget);
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    const size_t end = i;
    i += c.length;
    const bool ends = (c.value >= 0x0A && c.value <= 0x0D) || (c.value >= 0x1C && c.value <= 0x1E) || c.value == 0x85 ||
                      c.value == 0x2028 || c.value == 0x2029;
    if (!ends) continue;
    if (c.value == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.add(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.add(text.substr(begin));
  return lines.list;
}

std::string replaced(Budget& budget, std::string_view text, std::string_view old, std::string_view with, int64_t max) {
  std::string out;
  budget.take_bytes(static_cast<int64_t>(text.size()));
  if (old.empty()) {  // between all characters
    size_t at = 0;
    while (max != 0) {
      budget.take_bytes(static_cast<int64_t>(with.size()) + 1);
      out += with;
      --max;
      if (at >= text.size()) return out;
      const size_t length = character_length(text, at);
      out += text.substr(at, length);
      at += length;
    }
    return out.append(text.substr(at));
  }
  size_t at = 0;
  for (size_t next; max != 0 && (next = find(text, old, at)) != std::string_view::npos; --max) {
    budget.take_bytes(static_cast<int64_t>(with.size()) + 1);
    out.append(text.substr(at, next - at)).append(with);
    at = next + old.size();
  }
  return out.append(text.substr(at));
}

std::string justified(Budget& budget, const String& text, int64_t width, std::string_view fill, char side) {
  if (width <= text.characters) return text.bytes;
  const int64_t missing = width - text.characters;
  budget.take_bytes(missing, static_cast<int64_t>(fill.size()));
  const int64_t left = side == '<' ? 0 : side == '>' ? missing : missing / 2 + (missing & width & 1);
  std::string out;
  out.reserve(text.bytes.size() + fill.size() * static_cast<size_t>(missing));
  append_times(out, fill, left);
  out += text.bytes;
  append_times(out, fill, missing - left);
  return out;
}

void append_times(std::string& out, std::string_view text, int64_t times) {
  if (times <= 0 || text.empty()) return;
  const size_t begin = out.size(), end = begin + text.size() * static_cast<size_t>(times);
  out.reserve(end);
  out += text;
  while (out.size() < end) {  // doubles the appended text by copying it after itself
    const size_t there = out.size() - begin;
    out.append(out, begin, std::min(there, end - out.size()));
  }
}

}  // namespace colossal::text::jinja
