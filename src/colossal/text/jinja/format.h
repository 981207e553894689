// Python's two kinds of formatting: "%s of %d" % (...) and "{} of {:d}".format(...).
#pragma once
#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

class Interpreter;

/// Returns text % value. Supported: %s %r %a %c %d %i %u %o %x %X %e %E %f %F %g %G %%, flags, width, precision and
/// (keys).
Value format_percent(Budget& budget, const String& text, const Value& value);
/// Returns text.format(arguments). Supported: numbered and named fields, .attributes and [elements], !r !s !a, the
/// format specification.
Value format_braces(Interpreter& interpreter, const String& text, const Arguments& arguments);

/// Formats a float with `precision` digits as C's printf does. `kind` is one of e f g E F G.
std::string print_real(double number, char kind, int precision, bool alternate = false);

// Both format single values as fields: "%5d" and "{:>5}".

constexpr int64_t kMaxPrecision = 1000;  ///< maximum precision

/// A parsed format specification.
struct Field {
  std::string fill = " ";
  char align = 0;                        ///< one of < > ^ =; 0 = the default of the type
  char sign = '-';                       ///< sign of numbers that are not negative: + or a space; '-' = none
  bool alternate = false, zero = false;  ///< flag #; flag 0 without an alignment
  int64_t width = 0;                     ///< minimum number of characters
  char grouping = 0;                     ///< separator of groups of digits, one of , _; 0 = none
  int64_t precision = -1;                ///< -1 = not given
  char type = 0;                         ///< letter of the type, such as d or f, or %; 0 = not given
};

/// Returns `sign` and `body`, padded to the width. `otherwise` is the alignment if the field has none.
std::string padded(Budget& budget, const std::string& sign, const std::string& body, const Field& field,
                   char otherwise);
/// Returns the sign that is printed before a number. `wish`: Field::sign.
std::string sign_text(bool is_negative, char wish);
/// Returns the digits of |value| in base 8, 10 or 16.
std::string digits_of(int64_t value, int base, bool capital);
std::string format_integer(Budget& budget, int64_t value, const Field& field);
std::string format_real(Budget& budget, double value, const Field& field);
/// Implements Python's format(value, specification), with Python's errors.
std::string format_value(Budget& budget, const Value& value, std::string_view specification);

/// Returns repr() with \x escapes for characters that are not ASCII.
std::string ascii_repr(Budget& budget, const Value& value);
std::string first_characters(const std::string& text, int64_t count);

}  // namespace colossal::text::jinja
