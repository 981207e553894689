// A parser from ECMA-262 regular expressions to nondeterministic automata.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/text/grammar/text_automaton.h"

namespace colossal::text {

using CodePoints = std::vector<std::pair<uint32_t, uint32_t>>;  ///< ranges, both ends included

/// Returns all code points except surrogates.
CodePoints all_code_points();
/// Adds a way from state `from` to state `to` over the UTF-8 of any of the code points.
void add_code_points(PatternStates& states, int from, const CodePoints& points, int to);
/// Adds a way over `pattern` (no implied ^ or $). Errors: as TextAutomaton::add_pattern().
void add_pattern_way(PatternStates& states, int from, const std::string& pattern, int to);

}  // namespace colossal::text
