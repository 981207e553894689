// The pieces of a unigram model and their scores, learned from words.
//
//   const TrainedUnigram trained = train_unigram(words, {.vocabulary = 8000, .special = {"</s>"}});
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/text/word_counts.h"

namespace colossal::text {

struct UnigramTraining {
  int64_t vocabulary = 8000;
  std::vector<std::string> special{};  ///< the first tokens
  std::string unknown = "<unk>";       ///< for characters without a piece; in front, where it is not among `special`
  int64_t longest_piece = 16;          ///< characters
  int64_t seeds = 1000000;             ///< pieces that training begins with, at most
  double kept = 0.75;                  ///< of the pieces, each time that some are taken away
  int steps = 2;                       ///< of expectation and maximization before each such time
  int threads = 1;
};

struct TrainedUnigram {
  std::vector<std::pair<std::string, double>> pieces;  ///< by id: a token and the logarithm of its probability
  int64_t unknown = 0;                                 ///< the id of the unknown token
};

/// Begins with all characters and with what is followed by different characters, by length times how often, and then
/// alternates between probabilities that explain the words best and taking away the pieces that are missed least, as
/// sentencepiece and the package tokenizers do. Pieces and scores are those of the package, but for rounding. The
/// result does not depend on `threads`.
///
/// See:    Kudo, arXiv:1804.10959.
/// Errors: throws Error("tokenizer", ...) for no words, and where characters and special tokens alone are more than the
///         vocabulary.
/// Cost:   steps * log(seeds / vocabulary) / log(1 / kept) passes over the different words.
TrainedUnigram train_unigram(const std::vector<CountedWord>& words, const UnigramTraining& training);

}  // namespace colossal::text
