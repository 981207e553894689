#include "colossal/text/jinja/text_parts.h"

#include <algorithm>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/unicode.h"

namespace colossal::text::jinja {

std::vector<std::string_view> split_at_white(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::string_view> parts;
  std::string_view rest = strip_white(text, true, true);
  if (!from_right) {
    while (!rest.empty()) {
      if (most-- == 0) {
        parts.push_back(strip_white(text.substr(static_cast<size_t>(rest.data() - text.data())), true, false));
        break;
      }
      size_t end = 0;
      while (end < rest.size() && !is_white(first_code_point(rest.substr(end)).value))
        end += character_length(rest, end);
      parts.push_back(rest.substr(0, end));
      rest = strip_white(rest.substr(end), true, false);
    }
    return parts;
  }
  const std::vector<std::string_view> all = split_at_white(text, -1, false);
  if (most < 0 || static_cast<size_t>(most) >= all.size()) return all;
  const size_t first = all.size() - static_cast<size_t>(most);  // of the parts that are cut off
  const auto end = static_cast<size_t>(all[first - 1].data() - text.data()) + all[first - 1].size();
  parts.push_back(text.substr(0, end));
  parts.insert(parts.end(), all.begin() + static_cast<std::ptrdiff_t>(first), all.end());
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, int64_t most,
                                       bool from_right) {
  std::vector<std::string_view> parts;
  if (!from_right) {
    size_t at = 0;
    for (size_t next; most != 0 && (next = find(text, separator, at)) != std::string_view::npos; --most) {
      parts.push_back(text.substr(at, next - at));
      at = next + separator.size();
    }
    parts.push_back(text.substr(at));
    return parts;
  }
  // From the right: the same in the text turned around.
  const std::string turned(text.rbegin(), text.rend()), turned_separator(separator.rbegin(), separator.rend());
  for (const std::string_view part : split_at(turned, turned_separator, most, false)) {
    const auto behind = static_cast<size_t>(part.data() - turned.data()) + part.size();
    parts.push_back(text.substr(text.size() - behind, part.size()));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> lines_of(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    const size_t end = i;
    i += c.length;
    const bool ends = (c.value >= 0x0A && c.value <= 0x0D) || (c.value >= 0x1C && c.value <= 0x1E) || c.value == 0x85 ||
                      c.value == 0x2028 || c.value == 0x2029;
    if (!ends) continue;
    if (c.value == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replaced(Budget& budget, std::string_view text, std::string_view old, std::string_view with, int64_t most) {
  std::string out;
  budget.take_bytes(static_cast<int64_t>(text.size()));
  if (old.empty()) {  // between all characters
    size_t at = 0;
    while (most != 0) {
      budget.take_bytes(static_cast<int64_t>(with.size()) + 1);
      out += with;
      --most;
      if (at >= text.size()) return out;
      const size_t length = character_length(text, at);
      out += text.substr(at, length);
      at += length;
    }
    return out.append(text.substr(at));
  }
  size_t at = 0;
  for (size_t next; most != 0 && (next = find(text, old, at)) != std::string_view::npos; --most) {
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
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text.bytes;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return out;
}

}  // namespace colossal::text::jinja
