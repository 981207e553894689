// BERT's WordPiece, and WordLevel: a token a word.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/vocabulary.h"

namespace colossal::text {

/// A word is the longest token that starts it, then the longest that goes on, each behind `prefix`.
class WordPiece final : public WordModel {
 public:
  struct Options {
    std::string unknown = "[UNK]";  ///< for a word that cannot be spelled, or of more than `characters`
    std::string prefix = "##";
    int64_t characters = 100;
  };
  WordPiece(Vocabulary vocabulary, Options options);
  /// Cost: O(n m) lookups for n bytes and tokens of at most m.
  /// Errors: throws Error("tokenizer", ...) where the unknown token is needed and is not in the vocabulary.
  void encode(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  Options options_;
};

class WordLevel final : public WordModel {
 public:
  WordLevel(Vocabulary vocabulary, std::string unknown);
  /// Errors: as WordPiece's.
  void encode(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  std::string unknown_;
};

}  // namespace colossal::text
