// Byte pair encoding: symbols are joined, the best ranked neighbouring pair first, until no pair has a rank.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "colossal/text/vocabulary.h"

namespace colossal::text {

/// See: Sennrich, Haddow, Birch, arXiv:1508.07909.
class Bpe final : public WordModel {
 public:
  struct Options {
    bool bytes = false;  ///< words come as bytes, tokens are spelled in the byte alphabet: each byte is a symbol
    bool byte_fallback = false;  ///< a character without a token becomes the tokens <0xNN> of its bytes
    bool ignore_merges = false;  ///< a word that is a token is that token, whatever the merges say
    std::string unknown;         ///< the token for what is left; empty: it is dropped
    bool fuse_unknown = false;   ///< neighbouring unknown characters become one token
    std::string prefix;          ///< in front of every symbol of a word but the first (continuing_subword_prefix)
    std::string suffix;          ///< behind the last symbol of a word (end_of_word_suffix)
  };
  using Merges = std::vector<std::pair<std::string, std::string>>;
  /// Merges are in order of rank; of a pair that is there twice the last counts.
  /// Errors: throws Error("tokenizer", ...) when a merge, its result or the unknown token is not in the vocabulary.
  Bpe(Vocabulary vocabulary, const Merges& merges, Options options);
  /// The encoding of tiktoken: a word that is a token is that token, else neighbours whose join is a token are joined,
  /// the least id first. The vocabulary is of plain bytes.
  /// Errors: throws Error("tokenizer", ...) unless each byte is a token.
  static Bpe of_ranks(Vocabulary vocabulary);

  /// Cost: O(n log n) for n characters.
  void encode(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  struct Symbol;
  struct Merge {
    int32_t rank, result;
  };
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  explicit Bpe(Vocabulary vocabulary);
  void reserve_merges(size_t count);
  void add_merge(int32_t left, int32_t right, Merge merge);
  void fill_byte_ids();
  const Merge* merge_of(int32_t left, int32_t right) const;
  int32_t symbol_id(std::string_view symbol) const;
  void start(std::string_view word, std::vector<int32_t>& symbols) const;
  void join_few(std::vector<int32_t>& symbols) const;
  void join_many(std::vector<int32_t>& symbols) const;

  Options options_;
  StringIds symbols_;          // what words are looked up in: the vocabulary, in bytes where words are
  std::vector<Slot> merges_;   // open addressing by the two ids; a power of two
  int32_t byte_symbols_[256];  // of words that come as bytes
  int32_t unknown_ = -1;
  ByteTokens byte_tokens_;
};

}  // namespace colossal::text
