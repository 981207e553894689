// JSON as values of templates.
#pragma once
#include <nlohmann/json.hpp>

#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

/// The value that json.loads() would give, members in their order. Errors: integers beyond 64 bits, and what is nested
/// more than 150 deep.
Value from_json(Budget& budget, const nlohmann::ordered_json& json, int depth = 0);

}  // namespace colossal::text::jinja
