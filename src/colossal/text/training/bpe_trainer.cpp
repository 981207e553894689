#include "colossal/text/training/bpe_trainer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <unordered_map>

#include "colossal/base/error.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

using SymbolPair =
    uint64_t;  // the id of the left symbol in the upper half and of the right one in the lower: pairs sort by
               // id

SymbolPair pair_of(uint32_t left, uint32_t right) { return SymbolPair{left} << 32 | right; }

struct SymbolPairHash {
  size_t operator()(SymbolPair pair) const {
    pair *= 0x9E3779B97F4A7C15u;
    return static_cast<size_t>(pair ^ pair >> 32);
  }
};

struct TrainedSymbol {
  uint32_t id;
  int64_t length;
};

/// A pair with its count at the time when it was queued; the count may have changed since.
struct MergeCandidate {
  int64_t count;
  SymbolPair pair;
  std::vector<uint32_t> words;  // words in which the pair was new at that time
  bool operator<(const MergeCandidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class BpeTrainer {
 public:
  BpeTrainer(const std::vector<CountedWord>& words, const BpeTraining& training) : training_(training) {
    for (const std::string& token : training.special) id_of(token);
    add_alphabet(words);
    start(words);
    require(static_cast<int64_t>(tokens_.size()) <= training.vocabulary, "tokenizer",
            "a vocabulary must hold the special tokens and characters, which are ", tokens_.size(), ": got ",
            training.vocabulary, "; give a larger one, or a limit of characters");
    queue_touched();
  }

  TrainedBpe trained() {
    std::vector<SymbolPair> joined;
    while (static_cast<int64_t>(tokens_.size()) < training_.vocabulary && !queue_.empty()) {
      MergeCandidate best = queue_.top();
      queue_.pop();
      if (best.count != counts_[best.pair]) {
        best.count = counts_[best.pair];
        queue_.push(std::move(best));
        continue;
      }
      if (best.count < std::max<int64_t>(1, training_.min_frequency)) break;
      joined.push_back(best.pair);
      const uint32_t id = id_of(spelled(best.pair));
      for (const uint32_t word : best.words) join(best.pair, id, word);
      queue_touched();
    }
    return {tokens_, merges_of(joined)};
  }

 private:
  uint32_t id_of(const std::string& token) {
    const auto [found, is_new] = ids_.emplace(token, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(token);
    return static_cast<uint32_t>(found->second);
  }

  void add_alphabet(const std::vector<CountedWord>& words) {
    constexpr int64_t kAlways = std::numeric_limits<int64_t>::max();
    std::map<uint32_t, int64_t> counts;
    for (const CountedWord& word : words)
      for (std::string_view rest = word.text; !rest.empty();) {
        const CodePoint character = first_code_point(rest);
        counts[character.value] += word.count;
        rest.remove_prefix(character.length);
      }
    for (const uint32_t character : training_.alphabet) counts[character] = kAlways;
    std::vector<std::pair<int64_t, uint32_t>> kept;  // the most frequent character first
    for (const auto& [character, count] : counts) kept.emplace_back(-count, character);
    if (training_.max_characters > 0 && static_cast<int64_t>(kept.size()) > training_.max_characters) {
      std::sort(kept.begin(), kept.end());
      kept.resize(training_.max_characters);
    }
    std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    for (const auto& [count, character] : kept) {
      std::string token;
      append_utf8(token, character);
      id_of(token);
    }
  }

  /// Splits the words into symbols and counts the pairs in them.
  void start(const std::vector<CountedWord>& words) {
    for (const CountedWord& word : words) {
      std::vector<TrainedSymbol> symbols;
      for (std::string_view rest = word.text; !rest.empty();) {
        const CodePoint character = first_code_point(rest);
        const bool is_first = rest.size() == word.text.size(), is_last = character.length == rest.size();
        rest.remove_prefix(character.length);
        std::string symbol;
        append_utf8(symbol, character.value);
        if (!ids_.contains(symbol)) continue;  // the character exceeds max_characters
        if (!is_first) symbol.insert(0, training_.prefix);
        if (is_last) symbol += training_.suffix;
        symbols.push_back({id_of(symbol), 1});
      }
      const auto index = static_cast<uint32_t>(words_.size());
      words_.push_back({std::move(symbols), word.count});
      const auto& own = words_.back().symbols;
      for (size_t i = 1; i < own.size(); ++i) touch(pair_of(own[i - 1].id, own[i].id), index);
    }
  }

  void touch(SymbolPair pair, uint32_t word) {
    counts_[pair] += words_[word].count;
    std::vector<uint32_t>& where = touched_[pair];
    if (where.empty() || where.back() != word) where.push_back(word);
  }

  void queue_touched() {
    for (auto& [pair, where] : touched_)
      if (const int64_t count = counts_[pair]; count > 0) queue_.push({count, pair, std::move(where)});
    touched_.clear();
  }

  std::string spelled(SymbolPair pair) const {
    const std::string& right = tokens_[static_cast<uint32_t>(pair)];
    const bool has_prefix = !training_.prefix.empty() && right.starts_with(training_.prefix);
    return tokens_[pair >> 32] + (has_prefix ? right.substr(training_.prefix.size()) : right);
  }

  bool fits(const TrainedSymbol& left, const TrainedSymbol& right) const {
    return training_.length_limit == 0 || left.length + right.length < training_.length_limit;
  }

  /// Replaces each occurrence of the pair in the word by one symbol. Uncounts the pairs of its old symbols with their
  /// neighbours and counts the pairs of the new one.
  void join(SymbolPair pair, uint32_t id, uint32_t word) {
    std::vector<TrainedSymbol>& symbols = words_[word].symbols;
    const int64_t times = words_[word].count;
    const auto left = static_cast<uint32_t>(pair >> 32), right = static_cast<uint32_t>(pair);
    size_t to = 0;
    for (size_t i = 0; i < symbols.size(); ++i, ++to) {
      if (i + 1 == symbols.size() || symbols[i].id != left || symbols[i + 1].id != right) {
        symbols[to] = symbols[i];
        continue;
      }
      const TrainedSymbol made{id, symbols[i].length + symbols[i + 1].length};
      ++i;
      if (to > 0) {
        counts_[pair_of(symbols[to - 1].id, left)] -= times;
        if (fits(symbols[to - 1], made)) touch(pair_of(symbols[to - 1].id, id), word);
      }
      symbols[to] = made;
      if (i + 1 == symbols.size()) continue;
      counts_[pair_of(right, symbols[i + 1].id)] -= times;
      if (fits(symbols[i + 1], made)) touch(pair_of(id, symbols[i + 1].id), word);
    }
    symbols.resize(to);
  }

  /// Two merges may produce the same token from different pairs, after which the pairs of that token may be joined
  /// again. The last rank of a pair counts.
  Bpe::Merges merges_of(const std::vector<SymbolPair>& joined) const {
    std::unordered_map<SymbolPair, size_t, SymbolPairHash> last;
    for (size_t i = 0; i < joined.size(); ++i) last[joined[i]] = i;
    Bpe::Merges merges;
    for (size_t i = 0; i < joined.size(); ++i)
      if (last[joined[i]] == i)
        merges.emplace_back(tokens_[joined[i] >> 32], tokens_[static_cast<uint32_t>(joined[i])]);
    return merges;
  }

  struct TrainedWord {
    std::vector<TrainedSymbol> symbols;
    int64_t count;
  };
  const BpeTraining& training_;
  StringIds ids_;
  std::vector<std::string> tokens_;
  std::vector<TrainedWord> words_;
  std::unordered_map<SymbolPair, int64_t, SymbolPairHash> counts_;
  std::unordered_map<SymbolPair, std::vector<uint32_t>, SymbolPairHash>
      touched_;  // pairs that are new since the last call of
                 // queue_touched(), and the words that contain
                 // them
  std::priority_queue<MergeCandidate> queue_;
};

}  // namespace

TrainedBpe train_bpe(const std::vector<CountedWord>& words, const BpeTraining& training) {
  return BpeTrainer(words, training).trained();
}

}  // namespace colossal::text
