// Training of tokenizers from texts; the result is a tokenizer.json that make_tokenizer() reads.
//
//   TokenizerTrainer trainer({.kind = "bpe", .vocabulary = 8000, .special = {"<|endoftext|>"}});
//   trainer.add({"some text", "and more"});
//   std::ofstream("tokenizer.json") << std::move(trainer).trained().dump();
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/text/tokenizers/written_sections.h"
#include "colossal/text/training/word_counts.h"

namespace colossal::text {

/// Options of a TokenizerTrainer.
struct TokenizerTraining {
  std::string kind = "bpe";  ///< bpe = byte-level byte pair encoding; unigram = a unigram model of characters
  int64_t vocabulary = 32000;
  std::vector<std::string> special{};  ///< the first tokens; they are never split or merged
  int64_t min_frequency = 2;           ///< bpe: minimum number of occurrences of a pair that is joined
  int threads = 1;
  /// A tokenizer.json to imitate: the new tokenizer gets its normalizer, pre_tokenizer and decoder, and its model's
  /// prefix, suffix and unknown token. Null = the usual sections of the kind: for bpe GPT-2's; for unigram NFKC, one
  /// space in place of several, and words that start with U+2581.
  nlohmann::json like{};
};

/// A trainer that counts the words of texts and then learns a tokenizer from them.
class TokenizerTrainer {
 public:
  /// Errors: throws Error("tokenizer", ...) for an unknown kind, sizes that are not positive, a special token that is
  ///         empty, duplicate or not UTF-8, and sections of `like` that are not supported.
  explicit TokenizerTrainer(TokenizerTraining training);
  void add(const std::vector<std::string>& texts) { counter_->add(texts); }
  /// Returns the members that the package tokenizers writes, in its order.
  /// Errors: as train_bpe() and train_unigram().
  nlohmann::ordered_json trained() &&;

 private:
  nlohmann::ordered_json bpe(const std::vector<CountedWord>& words) const;
  nlohmann::ordered_json unigram(const std::vector<CountedWord>& words) const;

  TokenizerTraining training_;
  TokenizerSections<nlohmann::json> sections_;  // of the usual kind, or of `like`
  std::string unknown_;                         // empty = none
  std::optional<WordCounter> counter_;
};

}  // namespace colossal::text
