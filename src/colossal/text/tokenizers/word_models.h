// Models that turn a word into tokens: unigram models, BERT's WordPiece, and WordLevel, which has one token per word.
// Byte pair encoding is in bpe.h.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/tokenizers/vocabulary.h"

namespace colossal::text {

/// A unigram model of a tokenizer.json, which chooses the segmentation of a word with the largest sum of scores. See:
/// Kudo, arXiv:1804.10959.
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
  std::string part_of_word(int64_t id, bool is_first, bool is_last) const override;
  void append(std::string_view part, std::vector<int64_t>& ids) const;
  std::vector<double> scores_;
  Options options_;
  double unknown_score_;
  PieceTrie trie_;
  ByteTokens byte_tokens_;
};

/// A WordPiece model. A word becomes the longest token at its start, followed by the longest tokens that continue it,
/// each of which is spelled with `prefix`.
class WordPiece final : public WordModel {
 public:
  struct Options {
    std::string unknown = "[UNK]";  ///< token for a word that cannot be spelled, or has more than `characters`
                                    ///< characters
    std::string prefix = "##";
    int64_t characters = 100;
  };
  /// Does not check that the vocabulary has the unknown token; encode() does.
  WordPiece(Vocabulary vocabulary, Options options);
  /// Appends the ids of a word.
  /// Cost: O(n m) look-ups for n bytes and tokens of at most m bytes.
  /// Errors: throws Error("tokenizer", ...) if the unknown token is needed and is not in the vocabulary.
  void encode(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  std::string part_of_word(int64_t id, bool is_first, bool is_last) const override;
  Options options_;
};

/// A model in which each word is one token; other words become the unknown token.
class WordLevel final : public WordModel {
 public:
  WordLevel(Vocabulary vocabulary, std::string unknown);
  /// Errors: as WordPiece::encode().
  void encode(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  std::string part_of_word(int64_t id, bool is_first, bool is_last) const override;
  std::string unknown_;
};

}  // namespace colossal::text
