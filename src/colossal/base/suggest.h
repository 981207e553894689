// "did you mean": the nearest of some known words.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace colossal {

/// Number of inserted, deleted, replaced or swapped neighbouring characters between two words. Cost: O(|a| |b|).
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word`, or "" if none is near (a third of its length, at least 2 edits).
std::string closest(std::string_view word, const std::vector<std::string>& candidates);

/// ", did you mean `x`?" or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace colossal
