// Python's operators on the values of templates.
#pragma once
#include "colossal/text/jinja/tree.h"

namespace colossal::text::jinja {

/// Add to Power. Errors: as Python raises them, with its messages; integers beyond 64 bits.
Value binary(Budget& budget, NodeKind kind, const Value& a, const Value& b);
/// Negative or Positive.
Value unary(Budget& budget, NodeKind kind, const Value& a);
bool compare(Budget& budget, Comparison comparison, const Value& a, const Value& b);
/// value[begin:end:step], None where a part is left out.
Value slice(Budget& budget, const Value& value, const Value& begin, const Value& end, const Value& step);
/// The index of a list of `size` that Python's index means; nothing where it is outside.
std::optional<int64_t> place_of(int64_t index, int64_t size);
/// The character at an index within the text.
Value character_at(Budget& budget, const String& text, int64_t index);

}  // namespace colossal::text::jinja
