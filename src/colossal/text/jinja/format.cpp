#include "colossal/text/jinja/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/jinja/print.h"
#include "colossal/text/jinja/text_parts.h"
#include "colossal/text/unicode.h"

namespace colossal::text::jinja {
namespace {

uint64_t magnitude(int64_t value) {
  return value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

std::string in_base(uint64_t value, int base) {
  char text[72];
  return std::string(text, std::to_chars(text, text + sizeof text, value, base).ptr);
}

std::string capitals(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
  return text;
}

/// Inserts `sign` between groups of `group` digits of the integer part: 3, or 4 for bases other than 10.
std::string grouped(const std::string& digits, char sign, size_t group) {
  if (!sign) return digits;
  const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % group == 0) out += sign;
    out += digits[i];
  }
  return out + digits.substr(whole);
}

/// Parses the format specification after the colon of a field.
Field parse_field(std::string_view text) {
  Field field;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const auto number = [&](int64_t otherwise) {
    size_t digits = 0;
    while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
    if (digits > 18) fail(Cause::Value, "Too many decimal digits in format string");
    int64_t value = otherwise;
    std::from_chars(text.data(), text.data() + digits, value);
    text.remove_prefix(digits);
    return value;
  };
  const auto skip = [&](char c) { return text.starts_with(c) && (text.remove_prefix(1), true); };
  const size_t first = text.empty() ? 0 : character_length(text, 0);
  if (first < text.size() && first > 0 && is_align(text[first])) {
    field.fill = std::string(text.substr(0, first));
    field.align = text[first];
    text.remove_prefix(first + 1);
  } else if (!text.empty() && is_align(text[0])) {
    field.align = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty() && (text[0] == '+' || text[0] == '-' || text[0] == ' ')) {
    field.sign = text[0];
    text.remove_prefix(1);
  }
  field.alternate = skip('#');
  if (skip('0')) {
    field.zero = !field.align;
    if (first == 0 || field.fill == " ") field.fill = "0";
  }
  field.width = number(0);
  if (!text.empty() && (text[0] == ',' || text[0] == '_')) {
    field.grouping = text[0];
    text.remove_prefix(1);
  }
  if (skip('.')) {
    field.precision = number(-1);
    if (field.precision < 0) fail(Cause::Value, "Format specifier missing precision");
  }
  if (text.size() > 1) fail(Cause::Value, "Invalid format specifier");
  if (!text.empty()) field.type = text[0];
  return field;
}

}  // namespace

std::string padded(Budget& budget, const std::string& sign, const std::string& body, const Field& field,
                   char otherwise) {
  const int64_t missing = field.width - count_characters(body) - count_characters(sign);
  if (missing <= 0) return sign + body;
  budget.take_bytes(missing, 2 * static_cast<int64_t>(field.fill.size()));  // counts twice: here, and in the text that
                                                                            // contains the field
  const char align = field.align ? field.align : otherwise;
  const int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string out;
  out.reserve(sign.size() + body.size() + field.fill.size() * static_cast<size_t>(missing));
  if (align == '=') out += sign;
  append_times(out, field.fill, before);
  if (align != '=') out += sign;
  out += body;
  append_times(out, field.fill, missing - before);
  return out;
}

std::string sign_text(bool is_negative, char wish) {
  if (is_negative) return "-";
  return wish == '+' ? "+" : wish == ' ' ? " " : "";
}

std::string ascii_repr(Budget& budget, const Value& value) {
  const std::string text = repr(budget, value);
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(std::string_view(text).substr(i));
    char spelled[16] = {text[i], 0};
    if (c.value >= 0x80)
      std::snprintf(spelled, sizeof spelled,
                    c.value < 0x100     ? "\\x%02x"
                    : c.value < 0x10000 ? "\\u%04x"
                                        : "\\U%08x",
                    c.value);
    out += spelled;
    i += c.length;
  }
  return out;
}

std::string first_characters(const std::string& text, int64_t count) {
  const int64_t all = count_characters(text);
  return count >= all ? text : text.substr(0, byte_of_character(text, count, all == static_cast<int64_t>(text.size())));
}

std::string digits_of(int64_t value, int base, bool capital) {
  const std::string digits = in_base(magnitude(value), base);
  return capital ? capitals(digits) : digits;
}

std::string format_integer(Budget& budget, int64_t value, const Field& field) {
  if (field.precision >= 0) fail(Cause::Value, "Precision not allowed in integer format specifier");
  const char type = field.type ? static_cast<char>(field.type | 0x20) : 'd';
  const int base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'x' ? 16 : 10;
  std::string digits = in_base(magnitude(value), base), sign = sign_text(value < 0, field.sign);
  if (field.alternate && base != 10) sign += concat('0', field.type);
  if (field.type == 'X') digits = capitals(digits);
  return padded(budget, sign, grouped(digits, field.grouping, base == 10 ? 3 : 4), field, field.zero ? '=' : '>');
}

std::string format_real(Budget& budget, double value, const Field& field) {
  const bool is_negative = std::signbit(value) && !std::isnan(value);
  const double size = std::fabs(value) * (field.type == '%' ? 100 : 1);
  const int precision = static_cast<int>(field.precision);
  budget.step(8 + std::max(precision, 0) / 2);  // each digit of a long number costs a division of the whole number
  std::string digits;
  if (!field.type && precision < 0) {
    digits = repr_of_real(size);
  } else if (!field.type) {
    digits = print_real(size, 'g', std::max(precision, 1));
    if (digits.find_first_of(".einf") == std::string::npos) digits += ".0";
  } else {
    const char kind = field.type == '%' ? 'f' : field.type == 'n' ? 'g' : field.type;
    digits = print_real(size, kind, precision < 0 ? 6 : precision, field.alternate);
    if (field.type == '%') digits += '%';
  }
  return padded(budget, sign_text(is_negative, field.sign), grouped(digits, field.grouping, 3), field,
                field.zero ? '=' : '>');
}

std::string format_value(Budget& budget, const Value& value, std::string_view specification) {
  if (specification.empty()) return str(budget, value);
  const Field field = parse_field(specification);
  const std::string_view type(&field.type, field.type ? 1 : 0);
  const auto refuse = [&]() {
    fail(Cause::Value, "Unknown format code '", type, "' for object of type '", type_name(value), "'");
  };
  if (value.text()) {
    if (field.type && field.type != 's') refuse();
    if (field.align == '=') fail(Cause::Value, "'=' alignment not allowed in string format specifier");
    const std::string text =
        field.precision < 0 ? value.text()->bytes : first_characters(value.text()->bytes, field.precision);
    return padded(budget, "", text, field, '<');
  }
  if (!value.is_number()) fail(Cause::Type, "unsupported format string passed to ", type_name(value), ".__format__");
  if (field.precision > kMaxPrecision) fail(Cause::Value, "precision too big");
  const bool as_real =
      value.is_real() || (field.type && std::string_view("eEfFgG%").find(field.type) != std::string_view::npos);
  if (as_real) {
    if (field.type && std::string_view("eEfFgGn%").find(field.type) == std::string_view::npos) refuse();
    return format_real(budget, value.number(), field);
  }
  if (field.type == 'c') {
    std::string character;
    if (value.whole() < 0 || value.whole() > 0x10FFFF) fail(Cause::Overflow, "%c arg not in range(0x110000)");
    append_utf8(character, static_cast<uint32_t>(value.whole()));
    return padded(budget, "", character, field, '<');
  }
  if (field.type && std::string_view("bdoxXn").find(field.type) == std::string_view::npos) refuse();
  return format_integer(budget, value.whole(), field);
}

std::string print_real(double number, char kind, int precision, bool alternate) {
  const char format[] = {
      '%', alternate ? '#' : '.', alternate ? '.' : '*', alternate ? '*' : kind, alternate ? kind : '\0', '\0'};
  char text[kMaxPrecision + 400];  // the integer part has at most 309 digits
  return std::string(text, static_cast<size_t>(std::snprintf(text, sizeof text, format, precision, number)));
}

}  // namespace colossal::text::jinja
