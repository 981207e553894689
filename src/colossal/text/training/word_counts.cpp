#include "colossal/text/training/word_counts.h"

#include <algorithm>

#include "colossal/base/json.h"
#include "colossal/text/tokenizer.h"

namespace colossal::text {

WordCounter::WordCounter(const nlohmann::json& normalizer, const nlohmann::json& pre_tokenizer, int threads)
    : normalizer_(normalizer),
      pre_tokenizer_(pre_tokenizer, Spelling::Alphabet, normalizer_.is_byte_level()),
      counts_(std::max(1, threads)) {}

void WordCounter::add(const std::vector<std::string>& texts) {
  const size_t parts = counts_.size();
  for_each_index(parts, static_cast<int>(parts), [&](size_t part) {
    for (size_t i = texts.size() * part / parts; i < texts.size() * (part + 1) / parts; ++i)
      count(texts[i], counts_[part]);
  });
}

void WordCounter::count(const std::string& text, Counts& counts) const {
  const std::string normalized = normalizer_.empty() ? text : normalizer_(text).text;
  if (normalized.empty()) return;
  Words words;
  pre_tokenizer_(normalized, true, words);
  for (const Word& word : words.list) {
    const auto found = counts.find(word.text);
    if (found != counts.end())
      ++found->second;
    else
      counts.emplace(word.text, 1);
  }
}

std::vector<CountedWord> WordCounter::words() && {
  Counts all = std::move(counts_.front());
  for (size_t i = 1; i < counts_.size(); ++i) {
    for (auto& [word, count] : counts_[i]) all[word] += count;
    counts_[i].clear();
  }
  std::vector<CountedWord> words;
  words.reserve(all.size());
  for (const auto& [word, count] : all) words.push_back({word, count});
  std::sort(words.begin(), words.end(), [](const CountedWord& a, const CountedWord& b) { return a.text < b.text; });
  return words;
}

}  // namespace colossal::text
