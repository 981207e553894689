// Filters of numbers, and of texts that spell numbers.
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/jinja/filters.h"
#include "colossal/text/jinja/format.h"
#include "colossal/text/jinja/operators.h"
#include "colossal/text/jinja/print.h"
#include "colossal/text/unicode.h"

namespace colossal::text::jinja {
namespace {

/// Returns a number in the syntax of int() and float(): white space around it and underscores are removed, digits of
/// any script become ASCII. No value if an underscore is misplaced or the text is empty.
std::optional<std::string> number_text(std::string_view text) {
  text = strip_white(text, true, true);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const CodePoint c = first_code_point(text.substr(i));
    if (const auto digit = c.value < 0x80 ? std::nullopt : decimal_digit(c.value)) {
      out += static_cast<char>('0' + *digit);
      i += c.length - 1;
    } else if (text[i] != '_')
      out += text[i];
    else if (i == 0 || i + 1 == text.size() || text[i - 1] == '_')
      return std::nullopt;
  }
  if (out.empty()) return std::nullopt;
  return out;
}

std::optional<double> real_of(std::string_view text) {
  const auto number = number_text(text);
  if (!number || number->find_first_of("xXpP(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(number->c_str(), &end);
  return *end == 0 ? std::optional<double>(value) : std::nullopt;
}

std::optional<int64_t> integer_of(std::string_view text, int64_t base) {
  auto number = number_text(text);
  if (!number || base < 2 || base > 36) return std::nullopt;
  std::string_view digits = *number;
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) digits.remove_prefix(1);
  const char mark = digits.size() > 2 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : 0;
  if ((mark == 'x' && base == 16) || (mark == 'o' && base == 8) || (mark == 'b' && base == 2)) digits.remove_prefix(2);
  if (digits.starts_with('-')) return std::nullopt;
  std::string signed_digits = (is_negative ? "-" : "") + std::string(digits);
  int64_t value = 0;
  const char* const end = signed_digits.data() + signed_digits.size();
  const auto result = std::from_chars(signed_digits.data(), end, value, static_cast<int>(base));
  if (result.ec == std::errc::result_out_of_range) fail(Cause::Unsupported, "integers must fit 64 bits");
  return result.ec == std::errc() && result.ptr == end ? std::optional<int64_t>(value) : std::nullopt;
}

int64_t whole_part(double value) {
  if (!(std::fabs(value) < 9.2e18))
    fail(Cause::Overflow, "cannot convert float to a 64-bit integer: ", repr_of_real(value));
  return static_cast<int64_t>(value);
}

Value int_(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_int", arguments, {"default", "base"});
  require_defined(value);
  if (value.is_whole()) return Value::integer(value.whole());
  const Value otherwise = bound.at(0, Value::integer(0));
  if (value.is_real()) return std::isnan(value.number()) ? otherwise : Value::integer(whole_part(value.number()));
  if (!value.text()) return otherwise;
  interpreter.budget().step_characters(value.text()->bytes.size());
  if (const auto whole = integer_of(value.text()->bytes, bound.integer(1, 10))) return Value::integer(*whole);
  const auto real = real_of(value.text()->bytes);
  return real && std::isfinite(*real) ? Value::integer(whole_part(*real)) : otherwise;
}

Value float_(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_float", arguments, {"default"});
  require_defined(value);
  if (value.is_number()) return Value::real(value.number());
  if (value.text()) interpreter.budget().step_characters(value.text()->bytes.size());
  const auto real = value.text() ? real_of(value.text()->bytes) : std::nullopt;
  return real ? Value::real(*real) : bound.at(0, Value::real(0.0));
}

Value abs_(Interpreter& interpreter, const Value& value, Arguments&) {
  require_defined(value);
  if (!value.is_number()) fail(Cause::Type, "bad operand type for abs(): '", type_name(value), "'");
  const bool is_negative = value.is_real() ? std::signbit(value.number()) : value.whole() < 0;
  return unary(interpreter.budget(), is_negative ? NodeKind::Negative : NodeKind::Positive, value);
}

Value round_(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_round", arguments, {"precision", "method"});
  const int64_t precision = bound.integer(0, 0);
  const std::string method = bound.has(1) ? bound.text(1) : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    fail(Cause::Argument, "method must be common, ceil or floor");
  require_defined(value);
  if (!value.is_number()) fail(Cause::Type, "type ", type_name(value), " doesn't define __round__ method");
  const double number = value.number();
  if (method == "common" && value.is_whole() && precision >= 0) return Value::integer(value.whole());
  if (method == "common" && precision >= 0) {
    if (!std::isfinite(number) || precision > 330) return value;
    interpreter.budget().step(precision / 2);
    return Value::real(std::strtod(print_real(number, 'f', static_cast<int>(precision)).c_str(), nullptr));
  }
  const double unit = std::pow(10.0, static_cast<double>(precision));
  if (method != "common") {
    const double scaled = number * unit;
    return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
  }
  const double rounded = std::nearbyint(number * unit) / unit;
  return value.is_whole() ? Value::integer(whole_part(rounded)) : Value::real(rounded);
}

Value file_size(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_filesizeformat", arguments, {"binary"});
  const bool binary = bound.truth(0, false);
  const auto bytes = value.is_number() ? std::optional<double>(value.number())
                     : value.text()    ? real_of(value.text()->bytes)
                                       : std::nullopt;
  if (!bytes) fail(Cause::Value, "could not convert to float: ", repr(interpreter.budget(), value));
  const double base = binary ? 1024 : 1000;
  if (*bytes == 1) return interpreter.make("1 Byte");
  if (*bytes < base) return interpreter.make(concat(whole_part(*bytes), " Bytes"));
  double unit = base;
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  for (const char prefix : kPrefixes) {
    unit *= base;
    if (*bytes >= unit && prefix != 'Y') continue;
    const std::string name = binary ? concat(prefix == 'k' ? 'K' : prefix, "iB") : concat(prefix, "B");
    return interpreter.make(print_real(base * *bytes / unit, 'f', 1) + " " + name);
  }
  return value;
}

}  // namespace

Native find_number_filter(std::string_view name) {
  static const std::map<std::string_view, Native> filters{
      {"abs", abs_}, {"filesizeformat", file_size}, {"float", float_}, {"int", int_}, {"round", round_},
  };
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace colossal::text::jinja
