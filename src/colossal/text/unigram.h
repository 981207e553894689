// Unigram language models: of all ways to cut a word in pieces the one with the largest sum of scores.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "colossal/text/piece_trie.h"
#include "colossal/text/vocabulary.h"

namespace colossal::text {

/// See: Kudo, arXiv:1804.10959.
class Unigram final : public WordModel {
 public:
  struct Options {
    int64_t unknown = -1;        ///< the id for characters that no piece covers; -1: they are an error
    bool byte_fallback = false;  ///< these become the tokens <0xNN> of their bytes
  };
  /// `scores` are by id. Errors: throws Error("tokenizer", ...) for an unknown id outside the vocabulary.
  Unigram(Vocabulary vocabulary, std::vector<double> scores, Options options);

  /// Neighbouring unknown characters are one token. Cost: O(n m) for n bytes and pieces of at most m.
  /// Errors: throws Error("tokenizer", ...) for a character without a piece where there is no unknown token.
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
