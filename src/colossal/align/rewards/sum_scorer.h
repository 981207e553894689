// The score of an answer by several scorers: a weighted sum.
//
//   std::vector<WeightedScorer> parts;
//   parts.push_back({.scorer = std::move(verifiers)});
//   parts.push_back({.name = "command", .weight = 0.5, .scorer = std::move(command)});
//   SumScorer scorer(std::move(parts));
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/align/rewards/scorer.h"
#include "colossal/align/rewards/waiting_scores.h"

namespace colossal::align {

/// A scorer of a sum.
struct WeightedScorer {
  std::string name{};  ///< its own score is the part of that name; empty = it has no part but those that it names
  double weight = 1;   ///< finite
  std::unique_ptr<Scorer> scorer{};
};

/// Adds a named score. A name that another part has gets `before` before it: command_exact; empty = "other".
void add_part(std::vector<std::pair<std::string, double>>& parts, std::string name, const std::string& before,
              double value);

/// A scorer that gives each answer to all of its scorers. All of them work at the same time.
///
/// Score::value is the sum of weight * value in the order of the scorers, so it does not depend on the order of
/// arrival. It is none if one of them has none: a sum without a summand would rank answers by what failed.
/// Score::is_fault is true if it is for one of them.
/// Score::parts has for each scorer the value under its name, without the weight and if there is one, and then its own
/// parts. A part whose name is taken already gets the scorer's name before it: command_exact. Score::text has the texts
/// that are not empty, a line for each.
///
/// Errors of take(): those of the scorers. All answers that have no sum are then forgotten.
class SumScorer final : public Scorer {
 public:
  /// Errors ("reward"): no scorer; a weight that is not finite.
  explicit SumScorer(std::vector<WeightedScorer> scorers);

  void check(const text::PromptLine& line) override;
  void add(Answer answer) override;
  std::vector<Scored> take(double seconds) override;
  void forget() override;
  size_t waiting() const override { return waiting_.count(); }

 private:
  using Scores = std::vector<std::optional<Score>>;  // of an answer, by scorer

  void take_from(size_t scorer, double seconds);
  Score sum_of(const Scores& scores) const;

  const std::vector<WeightedScorer> scorers_;
  std::map<std::string, Scores> scores_;  // of answers that lack one, by id
  WaitingScores waiting_;
};

}  // namespace colossal::align
