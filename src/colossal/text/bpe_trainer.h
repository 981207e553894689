// Byte pair encoding learnt from text: the vocabulary that the package `tokenizers` learns (BpeTrainer with the
// alphabet of ByteLevel).
//
//   WordCounts counts = count_words(lines, 2);
//   const LearnedBpe learned = learn_bpe(counts, {.vocabulary_size = 32000, .special = {"<|endoftext|>"}});
//   write(tokenizer_json(learned).dump());
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace colossal::text {

/// How often each word is there, in bytes as the text has them.
using WordCounts = std::unordered_map<std::string, int64_t>;

/// Adds the words of each text, cut as GPT-2's pattern does, by at most `threads` threads.
void count_words(const std::vector<std::string_view>& texts, int threads, WordCounts& counts);

struct BpeTraining {
  int64_t vocabulary_size;           ///< of special tokens, 256 bytes and what merges make
  int64_t least_count = 0;           ///< a pair that is there less often is not merged
  std::vector<std::string> special;  ///< the first ids
};

struct LearnedBpe {
  std::vector<std::string> tokens;                  ///< by id, in the byte alphabet: special, bytes, merged
  std::vector<std::pair<int32_t, int32_t>> merges;  ///< the ids that are joined, the first first
  size_t special = 0;                               ///< so many of the tokens
};

/// Joins the pair of neighbours that is there most often, of several the one of the least ids, until the vocabulary is
/// as large as wanted or no pair is left. Cost: O(n log n) for n bytes of different words.
/// See: Sennrich, Haddow, Birch, arXiv:1508.07909.
/// Errors: throws Error("tokenizer", ...) when the wanted size does not hold the bytes and special tokens, or a special
/// token is empty or there twice.
LearnedBpe learn_bpe(const WordCounts& counts, const BpeTraining& training);

/// The tokenizer.json of what was learnt, which the package reads too.
nlohmann::json tokenizer_json(const LearnedBpe& learned);

}  // namespace colossal::text
