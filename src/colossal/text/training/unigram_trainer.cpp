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
#include "colossal/text/training/seed_pieces.h"

namespace colossal::text {
namespace {

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

TrainedUnigram train_unigram(const std::vector<CountedWord>& words, const UnigramTraining& training) {
  return UnigramTrainer(words, training).trained();
}

}  // namespace colossal::text
