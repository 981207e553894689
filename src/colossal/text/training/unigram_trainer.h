// Training of unigram models: learns the pieces and their scores from words.
//
//   const TrainedUnigram trained = train_unigram(words, {.vocabulary = 8000, .special = {"</s>"}});
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/text/training/word_counts.h"

namespace colossal::text {

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
