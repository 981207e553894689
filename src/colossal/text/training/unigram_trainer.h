// Training of unigram models: learns the pieces and their scores from words.
//
//   const TrainedUnigram trained = train_unigram(words, {.vocabulary = 8000, .special = {"</s>"}});
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

/// Options of train_unigram().
struct UnigramTraining {
  int64_t vocabulary = 8000;
  std::vector<std::string> special{};  ///< the first tokens
  std::string unknown = "<unk>";       ///< token for characters without a piece; it is id 0 if `special` does not
                                       ///< contain it
  int64_t longest_piece = 16;          ///< maximum length of a piece, in characters
  int64_t seeds = 1000000;             ///< maximum number of pieces at the start of training
  double kept = 0.75;                  ///< share of the pieces that each pruning keeps
  int steps = 2;                       ///< iterations of expectation and maximization before each pruning
  int threads = 1;
};

/// The result of train_unigram().
struct TrainedUnigram {
  std::vector<std::pair<std::string, double>> pieces;  ///< in order of id: a token and the logarithm of its probability
  int64_t unknown = 0;                                 ///< id of the unknown token
};

/// Learns the pieces as sentencepiece and the package tokenizers do. It starts with all characters and with the strings
/// that different characters follow, ranked by length times number of occurrences. Then it alternates two steps: it
/// estimates the probabilities that explain the words best, and prunes the pieces whose loss is smallest. Pieces and
/// scores equal those of the package except for rounding. The result does not depend on `threads`.
///
/// See:    Kudo, arXiv:1804.10959.
/// Errors: throws Error("tokenizer", ...) if there are no words, or if characters and special tokens alone exceed the
///         vocabulary.
/// Cost:   steps * log(seeds / vocabulary) / log(1 / kept) passes over the different words.
TrainedUnigram train_unigram(const std::vector<CountedWord>& words, const UnigramTraining& training);

}  // namespace colossal::text
