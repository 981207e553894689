#include "colossal/base/number.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace colossal {

std::string print_number(double number) {
  if (std::isnan(number)) return "nan";  // ignores the sign
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof(text), number).ptr);
}

namespace {

std::string printed(const char* conversion, int precision, double number) {
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, conversion, precision, number)), '\0');
  std::snprintf(text.data(), text.size() + 1, conversion, precision, number);
  return text;
}

}  // namespace

std::string text_of(double number, int digits) { return printed("%.*g", digits, number); }

std::string fixed_text(double number, int decimals) { return printed("%.*f", decimals, number); }

double shortest_double(float number) {
  char text[64];
  const char* end = std::to_chars(text, text + sizeof(text), number).ptr;
  double found = number;
  std::from_chars(text, end, found);
  return found;
}

std::optional<int64_t> parse_id(std::string_view text) {
  int64_t id = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), id);
  const bool is_id = failure == std::errc() && end == text.data() + text.size() && id >= 0;
  return is_id ? std::optional(id) : std::nullopt;
}

}  // namespace colossal
