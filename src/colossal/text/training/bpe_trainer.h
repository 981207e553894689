// Training of byte pair encoding: learns the merges from the words of a corpus.
//
//   const TrainedBpe trained = train_bpe(words, {.vocabulary = 8000, .special = {"<|endoftext|>"}});
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/text/tokenizers/bpe.h"
#include "colossal/text/training/word_counts.h"

namespace colossal::text {

/// Options of train_bpe().
struct BpeTraining {
  int64_t vocabulary = 30000;          ///< number of tokens in all; fewer if the words have no more pairs
  int64_t min_frequency = 0;           ///< minimum number of occurrences of a pair that is joined
  std::vector<std::string> special{};  ///< the first tokens
  std::vector<uint32_t> alphabet{};    ///< characters that become tokens even if no word contains them
  int64_t max_characters = 0;          ///< maximum number of characters that become tokens, the most frequent first;
                                       ///< words lose the other characters; 0 = all
  std::string prefix{}, suffix{};      ///< affixes of symbols: `prefix` before all but the first of a word, `suffix`
                                       ///< after the last (Bpe::Options)
  int64_t length_limit = 0;            ///< joined tokens have fewer characters than this, but two are always allowed;
                                       ///< 0 = no limit
};

/// The result of train_bpe().
struct TrainedBpe {
  std::vector<std::string> tokens;  ///< in order of id: special tokens, characters in order of code points, symbols
                                    ///< with a prefix or suffix, then joined tokens
  Bpe::Merges merges;               ///< sorted by rank
};

/// Joins the most frequent pair of neighbours until the vocabulary is full or no pair has `min_frequency`. Of equally
/// frequent pairs it joins the one with the smaller ids. The result equals that of the package tokenizers' BpeTrainer,
/// with two exceptions: the order of symbols with a prefix or suffix, and the choice among equally frequent characters
/// at `max_characters`. In the package chance decides these; here the order of the words and of the characters does.
///
/// See:    Sennrich, Haddow, Birch, arXiv:1508.07909.
/// Errors: throws Error("tokenizer", ...) if special tokens and characters alone exceed the vocabulary.
/// Cost:   O(characters of the different words), and O(log) for each pair that a merge changes.
TrainedBpe train_bpe(const std::vector<CountedWord>& words, const BpeTraining& training);

}  // namespace colossal::text
