#include "colossal/text/bpe_trainer.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/byte_alphabet.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/vocabulary.h"
#include "colossal/text/word_scanner.h"

namespace colossal::text {
namespace {

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    return (static_cast<uint64_t>(pair.first) << 32 | static_cast<uint32_t>(pair.second)) * 0x9E3779B97F4A7C15u >> 20;
  }
};

struct TrainedWord {
  std::vector<int32_t> symbols;
  int64_t count;
};

/// A pair to join, with the words that it was in and how often it was there when this was written.
struct Candidate {
  int64_t count;
  Pair pair;
  std::vector<size_t> words;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Learner {
 public:
  Learner(const WordCounts& counts, const BpeTraining& training) : training_(training) {
    for (const std::string& token : training.special) {
      require(!token.empty() && ids_.find(token) == ids_.end(), "tokenizer", "the special token ", printable(token),
              " is empty or there twice");
      add(token);
    }
    learned_.special = learned_.tokens.size();
    std::vector<std::string> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes.push_back(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
    std::vector<int32_t> ids(256);
    std::vector<int> order(256);
    for (int byte = 0; byte < 256; ++byte) order[byte] = byte;
    // By code point, which is the order of UTF-8's bytes.
    std::sort(order.begin(), order.end(), [&](int a, int b) { return bytes[a] < bytes[b]; });
    for (const int byte : order) ids[byte] = add(bytes[byte]);
    require(training.vocabulary_size >= size(), "tokenizer", "the vocabulary must hold ", size(),
            " special tokens and bytes: got ", training.vocabulary_size);
    for (const auto& [word, count] : counts) {
      TrainedWord trained{{}, count};
      for (const char c : word) trained.symbols.push_back(ids[static_cast<unsigned char>(c)]);
      words_.push_back(std::move(trained));
    }
  }

  LearnedBpe run() {
    for (size_t w = 0; w < words_.size(); ++w)
      for (size_t i = 0; i + 1 < words_[w].symbols.size(); ++i)
        change({words_[w].symbols[i], words_[w].symbols[i + 1]}, 1, w);
    offer();
    while (size() < training_.vocabulary_size && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      Candidate top = std::move(queue_.back());
      queue_.pop_back();
      const int64_t count = counts_[top.pair];
      if (count != top.count) {  // other merges took some
        top.count = count;
        push(std::move(top));
        continue;
      }
      if (count < 1 || count < training_.least_count) break;
      join(top);
    }
    return std::move(learned_);
  }

 private:
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }

  int32_t add(const std::string& token) {
    const auto [found, is_new] = ids_.emplace(token, static_cast<int32_t>(learned_.tokens.size()));
    if (is_new) learned_.tokens.push_back(token);
    return found->second;
  }

  void change(Pair pair, int sign, size_t word) {
    counts_[pair] += sign * words_[word].count;
    if (sign < 0) return;
    std::vector<size_t>& words = new_in_[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  /// Puts the pairs that became more into the queue.
  void offer() {
    for (auto& [pair, words] : new_in_)
      if (const int64_t count = counts_[pair]; count > 0) push({count, pair, std::move(words)});
    new_in_.clear();
  }

  void push(Candidate candidate) {
    queue_.push_back(std::move(candidate));
    std::push_heap(queue_.begin(), queue_.end());
  }

  void join(const Candidate& best) {
    const auto [left, right] = best.pair;
    const int32_t joined = add(learned_.tokens[left] + learned_.tokens[right]);
    learned_.merges.push_back(best.pair);
    for (const size_t w : best.words) {
      std::vector<int32_t>& symbols = words_[w].symbols;
      size_t out = 0;
      for (size_t i = 0; i < symbols.size(); ++i, ++out) {
        if (symbols[i] != left || i + 1 == symbols.size() || symbols[i + 1] != right) {
          symbols[out] = symbols[i];
          continue;
        }
        if (out > 0) {
          change({symbols[out - 1], left}, -1, w);
          change({symbols[out - 1], joined}, 1, w);
        }
        symbols[out] = joined;
        ++i;
        if (i + 1 < symbols.size()) {
          change({right, symbols[i + 1]}, -1, w);
          change({joined, symbols[i + 1]}, 1, w);
        }
      }
      symbols.resize(out);
    }
    offer();
  }

  const BpeTraining& training_;
  LearnedBpe learned_;
  StringIds ids_;
  std::vector<TrainedWord> words_;
  std::unordered_map<Pair, int64_t, PairHash> counts_;
  std::unordered_map<Pair, std::vector<size_t>, PairHash> new_in_;  // pairs that became more, and in which words
  std::vector<Candidate> queue_;                                    // a heap
};

}  // namespace

void count_words(const std::vector<std::string_view>& texts, int threads, WordCounts& counts) {
  const WordScanner scanner = WordScanner::gpt2();
  const size_t parts = std::min(texts.size(), static_cast<size_t>(std::max(threads, 1)));
  std::mutex mutex;
  for_each_index(parts, threads, [&](size_t part) {
    std::unordered_map<std::string_view, int64_t> own;
    for (size_t i = part; i < texts.size(); i += parts) {
      for (std::string_view rest = texts[i]; !rest.empty();) {
        const size_t length = scanner.first_word(rest);
        ++own[rest.substr(0, length)];
        rest.remove_prefix(length);
      }
    }
    const std::lock_guard lock(mutex);
    for (const auto& [word, count] : own) counts[std::string(word)] += count;
  });
}

LearnedBpe learn_bpe(const WordCounts& counts, const BpeTraining& training) { return Learner(counts, training).run(); }

nlohmann::json tokenizer_json(const LearnedBpe& learned) {
  using nlohmann::json;
  json vocabulary = json::object(), merges = json::array(), added = json::array();
  for (size_t id = 0; id < learned.tokens.size(); ++id) {
    vocabulary[learned.tokens[id]] = id;
    if (id < learned.special)
      added.push_back({{"id", id},
                       {"content", learned.tokens[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
  }
  for (const auto& [left, right] : learned.merges)
    merges.push_back(json::array({learned.tokens[left], learned.tokens[right]}));
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", merges}}}};
}

}  // namespace colossal::text
