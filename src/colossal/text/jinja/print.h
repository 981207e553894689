// Conversion of values to text: Python's str() and repr(), and json.dumps().
#pragma once
#include <string>

#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

/// Returns str(value). An undefined value gives an empty text.
std::string str(Budget& budget, const Value& value);
std::string repr(Budget& budget, const Value& value);
/// Returns repr() of a text: in quotes, with escapes for characters that cannot be printed.
std::string repr_of_text(std::string_view text);
/// Returns repr() of a float: "1.0", "1e+16", "nan".
std::string repr_of_real(double number);

/// Options of to_json(), named as in json.dumps().
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  ///< indentation per level; no value = a single line
  std::string between_items = ", ", behind_key = ": ";
};

/// Returns json.dumps(value). Errors: a value that JSON cannot represent.
std::string to_json(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace colossal::text::jinja
