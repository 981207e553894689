// JSON as values of templates, and back.
#pragma once
#include "colossal/base/json.h"
#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

/// Returns the value that Python's json.loads() gives, with members in their order. `depth` is the number of lists and
/// objects around `json`.
/// Errors: integers beyond 64 bits, and nesting of more than 150 levels.
Value from_json(Budget& budget, const nlohmann::ordered_json& json, int depth = 0);

/// Returns the JSON of a value. Errors: a value that JSON cannot represent, such as a macro or an infinite number.
nlohmann::ordered_json json_of(Budget& budget, const Value& value);

}  // namespace colossal::text::jinja
