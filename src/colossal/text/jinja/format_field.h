// One value as a field of a format wants it: what "%5d" and "{:>5}" have in common.
#pragma once
#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

constexpr int64_t kMostDigits = 1000;  ///< of a precision

/// How a field is to look.
struct Field {
  std::string fill = " ";
  char align = 0;  ///< one of < > ^ =, or 0
  char sign = '-';
  bool alternate = false, zero = false;
  int64_t width = 0;
  char grouping = 0;
  int64_t precision = -1;
  char type = 0;
};

/// `sign` and `body` filled up to the width; `otherwise` is how where the field does not say.
std::string padded(Budget& budget, const std::string& sign, const std::string& body, const Field& field,
                   char otherwise);
/// What stands before a number.
std::string sign_text(bool is_negative, char wish);
/// The digits of a number without its sign, of base 8, 10 or 16.
std::string digits_of(int64_t value, int base, bool capital);
std::string format_integer(Budget& budget, int64_t value, const Field& field);
std::string format_real(Budget& budget, double value, const Field& field);
/// format(value, specification). Errors: as Python raises them.
std::string format_value(Budget& budget, const Value& value, std::string_view specification);

/// repr() with \x escapes for what is not ASCII.
std::string ascii_repr(Budget& budget, const Value& value);
std::string first_characters(const std::string& text, int64_t count);

}  // namespace colossal::text::jinja
