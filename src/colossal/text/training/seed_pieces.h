// The initial pieces for the training of a unigram model.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "colossal/text/training/word_counts.h"

namespace colossal::text {

/// Returns the set of characters of the words.
std::set<std::string> characters_of(const std::vector<CountedWord>& words);

/// Returns all characters, the most frequent first, followed by strings of 2 to `longest` characters, up to `max`
/// pieces in all. The strings are those that different characters follow within the words (the end of a word counts as
/// one): the nodes of a suffix tree. Each piece has the logarithm of its share of the total score. A character's score
/// is its number of occurrences in the texts. A string's score is its length times the number of
/// its positions in `words`, where each word counts once, however often it occurs in the texts.
///
/// Errors: throws Error("tokenizer", ...) for 2^31 characters or more.
/// Cost:   O(n longest log n) for n characters in the different words, 16 bytes each.
std::vector<std::pair<std::string, double>> seed_pieces(const std::vector<CountedWord>& words, int64_t longest,
                                                        int64_t max);

}  // namespace colossal::text
