// A tokenizer learned from texts, as the tokenizer.json that make_tokenizer() reads.
//
//   TokenizerTrainer trainer({.kind = "bpe", .vocabulary = 8000, .special = {"<|endoftext|>"}});
//   trainer.add({"some text", "and more"});
//   std::ofstream("tokenizer.json") << std::move(trainer).trained().dump();
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "colossal/text/word_counts.h"

namespace colossal::text {

struct TokenizerTraining {
  std::string kind = "bpe";  ///< bpe: byte-level byte pair encoding; unigram: a unigram model of characters
  int64_t vocabulary = 32000;
  std::vector<std::string> special{};  ///< the first tokens, never cut and never part of others
  int64_t least_count = 2;             ///< bpe: how often a pair must be there to be joined
  int threads = 1;
  /// A tokenizer.json whose normalizer, pre_tokenizer, decoder, and prefix, suffix and unknown token of the model the
  /// new one has, too; null: those that are usual for the kind (of bpe GPT-2's; of unigram NFKC, one space for several,
  /// and words that begin with U+2581).
  nlohmann::json like{};
};

class TokenizerTrainer {
 public:
  /// Errors: throws Error("tokenizer", ...) for another kind, sizes that are not positive, a special token that is
  ///         empty, not UTF-8 or there twice, sections of `like` that are not understood.
  explicit TokenizerTrainer(TokenizerTraining training);
  void add(const std::vector<std::string>& texts) { counter_->add(texts); }
  /// The members that the package tokenizers writes, in its order. Errors: those of train_bpe() and train_unigram().
  nlohmann::ordered_json trained() &&;

 private:
  nlohmann::ordered_json bpe(const std::vector<CountedWord>& words) const;
  nlohmann::ordered_json unigram(const std::vector<CountedWord>& words) const;

  TokenizerTraining training_;
  nlohmann::json sections_;  // normalizer, pre_tokenizer, decoder, model
  std::string unknown_;      // empty: there is none
  std::optional<WordCounter> counter_;
};

}  // namespace colossal::text
