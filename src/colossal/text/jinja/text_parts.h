// Splitting and joining of texts, as Python's str does.
#pragma once
#include <string_view>
#include <vector>

#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

/// Implements str.splitlines(). The views of this function and the next two are valid as long as `text`.
std::vector<std::string_view> lines_of(Budget& budget, std::string_view text, bool keep_ends);
/// Implements str.split() and rsplit() at white space, with at most `max` splits; negative = no limit.
std::vector<std::string_view> split_at_white(Budget& budget, std::string_view text, int64_t max, bool from_right);
/// Implements str.split() and rsplit() at `separator`, which must not be empty.
std::vector<std::string_view> split_at(Budget& budget, std::string_view text, std::string_view separator, int64_t max,
                                       bool from_right);
/// Implements str.replace() with at most `max` replacements; -1 = all.
std::string replaced(Budget& budget, std::string_view text, std::string_view old, std::string_view with, int64_t max);
/// Implements str.ljust() (side '<'), rjust() ('>') and center() ('^').
std::string justified(Budget& budget, const String& text, int64_t width, std::string_view fill, char side);
/// Appends `text` `times` times; a negative count appends none. The caller must take the bytes from the budget first.
void append_times(std::string& out, std::string_view text, int64_t times);

}  // namespace colossal::text::jinja
