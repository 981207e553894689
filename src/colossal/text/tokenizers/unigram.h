// Unigram language models, which choose the segmentation of a word with the largest sum of scores.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "colossal/text/tokenizers/piece_trie.h"
#include "colossal/text/tokenizers/vocabulary.h"

namespace colossal::text {

/// A unigram model of a tokenizer.json. See: Kudo, arXiv:1804.10959.
class Unigram final : public WordModel {
 public:
  struct Options {
    int64_t unknown = -1;        ///< id for characters that no piece covers; -1 = such characters are an error
    bool byte_fallback = false;  ///< such characters become the tokens <0xNN> of their bytes
  };
  /// `scores` are indexed by id. Errors: throws Error("tokenizer", ...) for an unknown id outside the vocabulary.
  Unigram(Vocabulary vocabulary, std::vector<double> scores, Options options);

  /// Appends the ids of a word. Consecutive unknown characters become one token.
  /// Cost: O(n m) for n bytes and pieces of at most m bytes.
  /// Errors: throws Error("tokenizer", ...) for a character without a piece if there is no unknown token.
  void encode(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  void append(std::string_view part, std::vector<int64_t>& ids) const;
  std::vector<double> scores_;
  Options options_;
  double unknown_score_;
  PieceTrie trie_;
  ByteTokens byte_tokens_;
};

}  // namespace colossal::text
