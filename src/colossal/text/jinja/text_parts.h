// Texts cut up and put together, as Python's str does.
#pragma once
#include <string_view>
#include <vector>

#include "colossal/text/jinja/value.h"

namespace colossal::text::jinja {

/// str.splitlines().
std::vector<std::string_view> lines_of(Budget& budget, std::string_view text, bool keep_ends);
/// str.split() and rsplit(): the parts between white space; at most `most` cuts, any number where that is negative.
std::vector<std::string_view> split_at_white(Budget& budget, std::string_view text, int64_t most, bool from_right);
/// The parts between separators, which are not empty.
std::vector<std::string_view> split_at(Budget& budget, std::string_view text, std::string_view separator, int64_t most,
                                       bool from_right);
/// str.replace(); -1: all.
std::string replaced(Budget& budget, std::string_view text, std::string_view old, std::string_view with, int64_t most);
/// str.ljust() (side '<'), rjust() ('>') and center() ('^').
std::string justified(Budget& budget, const String& text, int64_t width, std::string_view fill, char side);
/// Appends `text` so many times, none where that is negative. The caller has taken the bytes from the budget.
void append_times(std::string& out, std::string_view text, int64_t times);

}  // namespace colossal::text::jinja
