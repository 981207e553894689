// The merges of byte pair encoding, learned from words.
//
//   const TrainedBpe trained = train_bpe(words, {.vocabulary = 8000, .special = {"<|endoftext|>"}});
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/text/bpe.h"
#include "colossal/text/word_counts.h"

namespace colossal::text {

struct BpeTraining {
  int64_t vocabulary = 30000;          ///< tokens in all; fewer where the words have no more pairs
  int64_t least_count = 0;             ///< of a pair that is joined
  std::vector<std::string> special{};  ///< the first tokens
  std::vector<uint32_t> alphabet{};    ///< characters that are tokens though no word has them
  int64_t most_characters = 0;         ///< that are tokens, the most frequent ones; words lose the others; 0: all
  std::string prefix{}, suffix{};      ///< of symbols that follow others, of the last of a word (Bpe::Options)
  int64_t length_limit = 0;            ///< joined tokens are of fewer characters than this, or of two; 0: none
};

struct TrainedBpe {
  std::vector<std::string> tokens;  ///< by id: special tokens, characters in their order, then what was joined
  Bpe::Merges merges;               ///< by rank
};

/// Joins the most frequent pair of neighbours again and again; of equally frequent ones that with the smaller ids.
/// Equal to the package tokenizers' BpeTrainer, but for the order of symbols with a prefix or suffix and for characters
/// of equal frequency at `most_characters`: there chance decides, here the order of the words and characters.
///
/// See:    Sennrich, Haddow, Birch, arXiv:1508.07909.
/// Errors: throws Error("tokenizer", ...) where special tokens and characters alone are more than the vocabulary.
/// Cost:   O(characters of the different words), and O(log) for each pair that a merge changes.
TrainedBpe train_bpe(const std::vector<CountedWord>& words, const BpeTraining& training);

}  // namespace colossal::text
