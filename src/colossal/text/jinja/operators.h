// Python's operators on template values.
#pragma once
#include "colossal/text/jinja/tree.h"

namespace colossal::text::jinja {

/// Applies an operator from Add to Power. Errors: as in Python, with its messages; integers beyond 64 bits.
Value binary(Budget& budget, NodeKind kind, const Value& a, const Value& b);
/// Applies Negative or Positive.
Value unary(Budget& budget, NodeKind kind, const Value& a);
bool compare(Budget& budget, Comparison comparison, const Value& a, const Value& b);
/// Returns value[begin:end:step]; None stands for an omitted part.
Value slice(Budget& budget, const Value& value, const Value& begin, const Value& end, const Value& step);
/// Converts a Python index, which may be negative, to an index of a list of `size`; no value if it is out of range.
std::optional<int64_t> place_of(int64_t index, int64_t size);
/// Returns the character at `index`, which must be within the text.
Value character_at(Budget& budget, const String& text, int64_t index);

}  // namespace colossal::text::jinja
