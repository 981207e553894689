// Byte pair encoding: joins neighbouring symbols, the best ranked pair first, until no pair has a rank.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "colossal/text/tokenizers/vocabulary.h"

namespace colossal::text {

/// A byte pair encoding model. See: Sennrich, Haddow, Birch, arXiv:1508.07909.
class Bpe final : public WordModel {
 public:
  struct Options {
    bool bytes = false;          ///< words are bytes and each byte is a symbol; tokens are spelled in the byte alphabet
    bool byte_fallback = false;  ///< a character without a token becomes the tokens <0xNN> of its bytes
    bool ignore_merges = false;  ///< a word that is itself a token becomes that token, without merges
    std::string unknown;         ///< token for characters without another token; empty = they are dropped
    bool fuse_unknown = false;   ///< consecutive unknown characters become one token
    std::string prefix;          ///< prefix of every symbol of a word except the first (continuing_subword_prefix)
    std::string suffix;          ///< suffix of the last symbol of a word (end_of_word_suffix)
  };
  using Merges = std::vector<std::pair<std::string, std::string>>;
  /// `merges` are in order of rank; if a pair occurs twice, its last rank counts.
  /// Errors: throws Error("tokenizer", ...) if a merge, its result or the unknown token is not in the vocabulary.
  Bpe(Vocabulary vocabulary, const Merges& merges, Options options);
  /// Returns the encoding of tiktoken: a word that is a token becomes that token. Otherwise neighbours whose
  /// concatenation is a token are joined, the smallest id first. The vocabulary consists of plain bytes.
  /// Errors: throws Error("tokenizer", ...) unless each byte is a token.
  static Bpe of_ranks(Vocabulary vocabulary);

  /// Appends the ids of `word`. Cost: O(n log n) for n characters.
  void encode(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  std::string part_of_word(int64_t id, bool is_first, bool is_last) const override;
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
  StringIds symbols_;          // the vocabulary for look-ups, spelled in bytes if words are bytes
  std::vector<Slot> merges_;   // hash table with open addressing, keyed by the two ids; its size is a power of two
  int32_t byte_symbols_[256];  // symbols of single bytes, for words that are bytes
  int32_t unknown_ = -1;
  ByteTokens byte_tokens_;
};

}  // namespace colossal::text
