// Values as text: Python's str() and repr(), and json.dumps().
#pragma once
#include <string>

#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

/// str(value). An undefined value is empty.
std::string str(Budget& budget, const Value& value);
std::string repr(Budget& budget, const Value& value);
/// repr() of a text: in quotes, with escapes for what cannot be printed.
std::string repr_of_text(std::string_view text);
/// repr() of a float: "1.0", "1e+16", "nan".
std::string repr_of_real(double number);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  ///< of a level; none: all in a line
  std::string between_items = ", ", behind_key = ": ";
};

/// json.dumps(value). Errors: what JSON has no form for.
std::string to_json(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace colossal::text::jinja
