// BERT's WordPiece, and WordLevel, which has one token per word.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/tokenizers/vocabulary.h"

namespace colossal::text {

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
  Options options_;
};

/// A model in which each word is one token; other words become the unknown token.
class WordLevel final : public WordModel {
 public:
  WordLevel(Vocabulary vocabulary, std::string unknown);
  /// Errors: as WordPiece::encode().
  void encode(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  std::string unknown_;
};

}  // namespace colossal::text
