// Byte pair encoding: symbols are joined, the best ranked neighbouring pair first, until no pair has a rank.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace colossal::text {

/// See: Sennrich, Haddow, Birch, arXiv:1508.07909.
class Bpe {
 public:
  using Vocabulary = std::unordered_map<std::string, int32_t>;
  struct Options {
    bool byte_fallback = false;  ///< a character without a token becomes the tokens <0xNN> of its bytes
    bool ignore_merges = false;  ///< a word that is a token is that token, whatever the merges say
    int32_t unknown = -1;        ///< for what is left; -1: dropped
    bool fuse_unknown = false;   ///< neighbouring unknown characters become one token
  };
  /// Merges are in order of rank.
  /// Errors: throws Error("tokenizer", ...) when a merge or its result is not in the vocabulary.
  Bpe(Vocabulary vocabulary, const std::vector<std::pair<std::string, std::string>>& merges, Options options);

  /// Appends the ids of one word. Cost: O(n log n) for n characters.
  void encode(std::string_view word, std::vector<int64_t>& ids) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    int32_t rank, result;
  };
  const Merge* merge_of(int32_t left, int32_t right) const;
  std::vector<int32_t> symbols(std::string_view word) const;
  void add_bytes(std::string_view character, std::vector<int32_t>& out) const;

  Vocabulary vocabulary_;
  std::unordered_map<uint64_t, Merge> merges_;  // by the two ids
  int32_t byte_ids_[256];                       // of <0xNN>, or -1
  Options options_;
};

}  // namespace colossal::text
