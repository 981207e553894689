// Counts of the words in texts, from which the merges and pieces of a tokenizer are learned.
//
//   WordCounter counter(tokenizer["normalizer"], tokenizer["pre_tokenizer"], /*threads=*/2);
//   counter.add({"two words", "two more"});
//   const std::vector<CountedWord> words = std::move(counter).words();  // "two" twice, the others once
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "colossal/text/tokenizers/normalizer.h"
#include "colossal/text/tokenizers/pre_tokenizer.h"
#include "colossal/text/tokenizers/vocabulary.h"

namespace colossal::text {

/// A word and its number of occurrences.
struct CountedWord {
  std::string text;
  int64_t count;
};

/// A counter of words that splits texts as a tokenizer does.
class WordCounter {
 public:
  /// The arguments are sections of a tokenizer.json. Errors: as Normalizer and PreTokenizer.
  WordCounter(const nlohmann::json& normalizer, const nlohmann::json& pre_tokenizer, int threads);
  /// Counts the words of each text. Memory: each different word once, and once more for each thread.
  void add(const std::vector<std::string>& texts);
  /// Returns the words in the order of their bytes, whatever the order of the texts and the number of threads.
  std::vector<CountedWord> words() &&;

 private:
  using Counts = std::unordered_map<std::string, int64_t, StringHash, std::equal_to<>>;
  void count(const std::string& text, Counts& counts) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::vector<Counts> counts_;  // one table per thread
};

}  // namespace colossal::text
