// What the training of a unigram model begins with.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "colossal/text/word_counts.h"

namespace colossal::text {

/// The characters of the words.
std::set<std::string> characters_of(const std::vector<CountedWord>& words);

/// All characters, the most frequent first, and then, up to `most` in all, the strings of 2 to `longest` characters in
/// the words behind which not always the same follows (the end of a word is something that follows, too): the nodes of
/// a suffix tree. Each with the logarithm of its part of a sum: of a character how often it stands in the texts, of a
/// string its length times the words in which it is, with each place.
///
/// Errors: throws Error("tokenizer", ...) for 2^31 characters or more.
/// Cost:   O(n longest log n) for n characters in the different words, 16 bytes each.
std::vector<std::pair<std::string, double>> seed_pieces(const std::vector<CountedWord>& words, int64_t longest,
                                                        int64_t most);

}  // namespace colossal::text
