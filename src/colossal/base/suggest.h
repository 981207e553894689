// "did you mean": finds the known word that is nearest to a misspelled one.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace colossal {

/// Returns the number of edits between two words: characters inserted, deleted or replaced, and neighbours swapped.
/// Cost: O(|a| |b|).
int edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate nearest to `word`, or "" if none is near. A candidate is near up to a number of edits that is
/// a third of the word's length, or 2 if that is more. A word of more than 256 bytes gives "".
std::string closest(std::string_view word, const std::vector<std::string>& candidates);

/// Returns ", did you mean `x`?", where x is the closest() candidate, or "" if none is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// Returns ", did you mean `x`?" for a key of a config, such as "optimizer.lr", or "" if no candidate is near. In order
/// of preference x is a key of the same table that `key` abbreviates ("learning_rate"), a key of the same table with
/// this word in its name ("warmup_steps" for "warmup"), the closest() candidate that is no table around the key, or a
/// key of the same name in another table.
std::string did_you_mean_key(std::string_view key, const std::vector<std::string>& candidates);

}  // namespace colossal
