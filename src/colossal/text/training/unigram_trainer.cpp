#include "colossal/text/training/unigram_trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "colossal/base/error.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/training/lattice.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

constexpr char32_t kEnd = 0;  // terminates each word in the joined text; a word that contains it is split there

std::u32string joined(const std::vector<CountedWord>& words) {
  std::u32string all;
  for (const CountedWord& word : words) {
    for (std::string_view rest = word.text; !rest.empty();) {
      const CodePoint character = first_code_point(rest);
      rest.remove_prefix(character.length);
      all.push_back(character.value);
    }
    all.push_back(kEnd);
  }
  require(all.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()), "tokenizer",
          "the words must have fewer than 2^31 characters: got ", all.size(), "; learn from fewer texts");
  return all;
}

std::string utf8_of(std::u32string_view characters) {
  std::string text;
  for (const char32_t c : characters) append_utf8(text, c);
  return text;
}

struct PieceCandidate {
  uint64_t score;
  std::u32string_view text;
};

/// The suffixes of the words by their positions, in alphabetical order, so suffixes with a common start are neighbours.
class SortedSuffixes {
 public:
  SortedSuffixes(const std::u32string& all, size_t longest) : all_(all), longest_(longest) {
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i] != kEnd) places_.push_back(static_cast<int32_t>(i));
    std::sort(places_.begin(), places_.end(), [&](int32_t a, int32_t b) { return beginning(a) < beginning(b); });
  }

  /// Calls found(string, places) for each string of at most `longest` characters within a word that is followed by at
  /// least two different characters.
  template <class Found>
  void branching(const Found& found) const {
    struct Open {
      size_t length, first;
    };
    std::vector<Open> open;  // strings at the start of the last suffix that are not closed, the longest last
    for (size_t i = 1; i <= places_.size(); ++i) {
      const size_t common = i < places_.size() ? common_length(places_[i - 1], places_[i]) : 0;
      size_t first = i - 1;
      while (!open.empty() && open.back().length > common) {
        const Open closed = open.back();
        open.pop_back();
        first = closed.first;
        const std::u32string_view text(all_.data() + places_[closed.first], closed.length);
        if (closed.length <= longest_ && text.back() != kEnd) found(text, i - closed.first);
      }
      if (common > 0 && (open.empty() || open.back().length < common)) open.push_back({common, first});
    }
  }

 private:
  /// Returns the characters of a suffix that the sort compares: up to the end of its word, and one more than `longest`,
  /// so that the character after the longest string counts.
  std::u32string_view beginning(int32_t place) const {
    const std::u32string_view rest = std::u32string_view(all_).substr(place, longest_ + 1);
    return rest.substr(0, rest.find(kEnd) == rest.npos ? rest.size() : rest.find(kEnd) + 1);
  }
  size_t common_length(int32_t a, int32_t b) const {
    const std::u32string_view x = beginning(a), y = beginning(b);
    return std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin();
  }

  const std::u32string& all_;
  size_t longest_;
  std::vector<int32_t> places_;
};

constexpr int32_t kUnknownId = 0;        // first piece during training
constexpr double kTrainingPenalty = 10;  // distance of the unknown score below the lowest score
constexpr double kMinExpected = 0.5;     // a piece with a lower expected count is removed
constexpr size_t kParts = 16;            // fixed partition of the words, so that sums do not depend on the number of
                                         // threads

/// Derivative of the logarithm of the gamma function: uses the recurrence up to where the asymptotic series is exact.
double digamma(double x) {
  double sum = 0;
  for (; x < 10; ++x) sum -= 1 / x;
  const double y = 1 / (x * x);
  return sum + std::log(x) - 0.5 / x - y * (1.0 / 12 - y * (1.0 / 120 - y * (1.0 / 252 - y * (1.0 / 240 - y / 132))));
}

struct Model {
  std::vector<std::pair<std::string, double>> pieces;  // the unknown piece first; its score is not used
  PieceTrie trie;
  std::vector<double> scores;
  Lattice::Unknown unknown{kUnknownId, 0};
};

Model model_of(std::vector<std::pair<std::string, double>> pieces) {
  Model model{.pieces = std::move(pieces), .trie = PieceTrie(std::numeric_limits<int32_t>::max()), .scores = {}};
  double min = std::numeric_limits<double>::infinity();
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& [piece, score] = model.pieces[id];
    model.scores.push_back(score);
    if (id == kUnknownId) continue;
    min = std::min(min, score);
    model.trie.add(piece, static_cast<int32_t>(id));
  }
  model.unknown.score = min - kTrainingPenalty;
  return model;
}

class UnigramTrainer {
 public:
  UnigramTrainer(const std::vector<CountedWord>& words, const UnigramTraining& training)
      : words_(words), training_(training) {
    require(!words.empty(), "tokenizer", "there must be words to learn pieces from: got none");
    characters_ = characters_of(words);
    for (const std::string& token : training.special) characters_.erase(token);  // special tokens already have an id
    const auto first = static_cast<int64_t>(training.special.size()) + (special_unknown() < 0 ? 1 : 0);
    room_ = training.vocabulary - first;
    require(static_cast<int64_t>(characters_.size()) <= room_, "tokenizer",
            "a vocabulary must hold the special tokens and characters, which are ",
            first + static_cast<int64_t>(characters_.size()), ": got ", training.vocabulary, "; give a larger one");
  }

  TrainedUnigram trained() {
    std::vector<std::pair<std::string, double>> pieces{{training_.unknown, 0}};
    for (auto& seed : seed_pieces(words_, training_.longest_piece, training_.seeds)) pieces.push_back(std::move(seed));
    Model model = model_of(std::move(pieces));
    const auto wanted = static_cast<size_t>(training_.vocabulary * 11 / 10);  // more than the final size, so that the
                                                                              // last selection still has a choice
    for (;;) {
      for (int step = 0; step < training_.steps; ++step) model = maximized(model, expected(model));
      if (model.pieces.size() <= wanted) return finished(model);
      model = pruned(model, wanted);
    }
  }

 private:
  int64_t special_unknown() const {
    const auto found = std::find(training_.special.begin(), training_.special.end(), training_.unknown);
    return found == training_.special.end() ? -1 : found - training_.special.begin();
  }

  bool is_special(const std::string& piece) const {
    return piece == training_.unknown ||
           std::find(training_.special.begin(), training_.special.end(), piece) != training_.special.end();
  }

  /// Calls of_word(word, lattice, sums) for each word, where `sums` has one entry per piece. Returns the total of all
  /// sums.
  template <class OfWord>
  std::vector<double> summed(const Model& model, const OfWord& of_word) const {
    std::vector<std::vector<double>> sums(std::min(kParts, words_.size()));
    for_each_index(sums.size(), training_.threads, [&](size_t part) {
      sums[part].assign(model.pieces.size(), 0);
      Lattice lattice;
      for (size_t i = words_.size() * part / sums.size(); i < words_.size() * (part + 1) / sums.size(); ++i) {
        lattice.read(words_[i].text, model.trie, model.scores, model.unknown);
        of_word(words_[i], lattice, sums[part]);
      }
    });
    for (size_t part = 1; part < sums.size(); ++part)
      for (size_t id = 0; id < sums[0].size(); ++id) sums[0][id] += sums[part][id];
    return std::move(sums[0]);
  }

  std::vector<double> expected(const Model& model) const {
    return summed(model, [](const CountedWord& word, const Lattice& lattice, std::vector<double>& sums) {
      const double all = lattice.add_expected(static_cast<double>(word.count), sums);
      require(std::isfinite(all), "tokenizer", "a word of ", word.text.size(),
              " bytes is too improbable to learn from; use a pre-tokenizer that splits it");
    });
  }

  /// Makes pieces as probable as their expected counts, with a sparse prior (Liang and Klein, ACL 2007 tutorial,
  /// "Structured Bayesian nonparametric models with variational inference").
  static Model maximized(const Model& model, const std::vector<double>& expected) {
    std::vector<std::pair<std::string, double>> pieces{model.pieces[kUnknownId]};
    double sum = 0;
    for (size_t id = kUnknownId + 1; id < expected.size(); ++id) {
      if (expected[id] < kMinExpected) continue;
      pieces.emplace_back(model.pieces[id].first, expected[id]);
      sum += expected[id];
    }
    const double log_sum = digamma(sum);
    for (size_t i = 1; i < pieces.size(); ++i) pieces[i].second = digamma(pieces[i].second) - log_sum;
    return model_of(std::move(pieces));
  }

  /// Keeps the pieces whose removal would lower the probability of the words most. A removed piece is replaced by its
  /// second best segmentation. The loss is computed as in the package tokenizers: the total count grows by the count of
  /// the piece once for every piece of the model. In sentencepiece it grows once for each part that replaces the piece.
  /// The package therefore keeps frequent pieces more often.
  Model pruned(const Model& model, size_t wanted) const {
    const std::vector<double> met =
        summed(model, [](const CountedWord& word, const Lattice& lattice, std::vector<double>& sums) {
          for (const int32_t id : lattice.best()) sums[id] += static_cast<double>(word.count);
        });
    double words = 0, sum = 0;
    for (const CountedWord& word : words_) words += static_cast<double>(word.count);
    for (const double times : met) sum += times;
    std::vector<std::pair<std::string, double>> kept{model.pieces[kUnknownId]};
    std::vector<std::pair<double, size_t>> losses;  // negative, so that the largest loss sorts first
    Lattice lattice;
    for (size_t id = kUnknownId + 1; id < met.size(); ++id) {
      lattice.read(model.pieces[id].first, model.trie, model.scores, model.unknown);
      const std::vector<int32_t> other = lattice.best(/*is_cut=*/true);
      if (!other.empty() && met[id] == 0) continue;  // an unused piece costs no probability
      if (other.empty() || lattice.best().size() > 1) {
        kept.push_back(model.pieces[id]);
        continue;
      }
      const double sum_without = std::log(sum + met[id] * static_cast<double>(met.size() - 1));
      double without = 0;
      for (const int32_t part : other) without += std::log(met[part] + met[id]) - sum_without;
      losses.emplace_back(-met[id] / words * (std::log(met[id]) - std::log(sum) - without), id);
    }
    const auto size = std::max(wanted, static_cast<size_t>(static_cast<double>(met.size()) * training_.kept));
    std::stable_sort(losses.begin(), losses.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [loss, id] : losses) {
      if (kept.size() == size) break;
      kept.push_back(model.pieces[id]);
    }
    return model_of(std::move(kept));
  }

  /// Returns all characters, followed by as many other pieces as fit, the most probable first.
  TrainedUnigram finished(const Model& model) const {
    std::unordered_map<std::string, double> known(model.pieces.begin() + 1, model.pieces.end());
    const double min = model.unknown.score + kTrainingPenalty;
    constexpr double kApart = 0.0001;  // distance between the scores of characters that were removed
    std::vector<std::pair<std::string, double>> pieces;
    double above = 0;
    for (const std::string& character : characters_) {
      const auto found = known.find(character);
      pieces.emplace_back(character, found != known.end() ? found->second : min + above);
      if (found == known.end()) above += kApart;
    }
    for (size_t id = 1; id < model.pieces.size() && static_cast<int64_t>(pieces.size()) < room_; ++id)
      if (!characters_.contains(model.pieces[id].first) && !is_special(model.pieces[id].first))
        pieces.push_back(model.pieces[id]);
    std::stable_sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    TrainedUnigram trained;
    if (special_unknown() < 0) trained.pieces.emplace_back(training_.unknown, 0);
    for (const std::string& token : training_.special) trained.pieces.emplace_back(token, 0);
    trained.unknown = std::max<int64_t>(0, special_unknown());
    trained.pieces.insert(trained.pieces.end(), pieces.begin(), pieces.end());
    return trained;
  }

  const std::vector<CountedWord>& words_;
  const UnigramTraining& training_;
  std::set<std::string> characters_;
  int64_t room_;  // number of pieces that are not special
};

}  // namespace

std::set<std::string> characters_of(const std::vector<CountedWord>& words) {
  const std::u32string all = joined(words);
  std::set<std::string> characters;
  for (const char32_t c : std::set<char32_t>(all.begin(), all.end()))
    if (c != kEnd) characters.insert(utf8_of({&c, 1}));
  return characters;
}

std::vector<std::pair<std::string, double>> seed_pieces(const std::vector<CountedWord>& words, int64_t longest,
                                                        int64_t max) {
  std::map<char32_t, int64_t> counts;
  for (const CountedWord& word : words)
    for (const char32_t c : joined({word}))
      if (c != kEnd) counts[c] += word.count;
  std::vector<std::pair<int64_t, char32_t>> characters;
  for (const auto& [character, count] : counts) characters.emplace_back(count, character);
  std::sort(characters.rbegin(), characters.rend());
  const std::u32string all = joined(words);
  std::vector<PieceCandidate> strings;
  SortedSuffixes(all, static_cast<size_t>(longest)).branching([&](std::u32string_view text, size_t places) {
    if (text.size() > 1) strings.push_back({places * text.size(), text});
  });
  std::sort(strings.begin(), strings.end(), [](const PieceCandidate& a, const PieceCandidate& b) {
    return a.score != b.score ? a.score > b.score : a.text > b.text;
  });
  std::vector<std::pair<std::string, double>> pieces;
  for (const auto& [count, character] : characters)
    pieces.emplace_back(utf8_of({&character, 1}), static_cast<double>(count));
  for (const PieceCandidate& string : strings) {
    if (static_cast<int64_t>(pieces.size()) >= max) break;
    pieces.emplace_back(utf8_of(string.text), static_cast<double>(string.score));
  }
  double sum = 0;
  for (const auto& [piece, score] : pieces) sum += score;
  for (auto& [piece, score] : pieces) score = std::log(score) - std::log(sum);
  return pieces;
}

TrainedUnigram train_unigram(const std::vector<CountedWord>& words, const UnigramTraining& training) {
  return UnigramTrainer(words, training).trained();
}

}  // namespace colossal::text
