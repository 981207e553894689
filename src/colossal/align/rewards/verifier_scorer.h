// The score of an answer by verifiers of the library or the program.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "colossal/align/rewards/scorer.h"
#include "colossal/align/rewards/waiting_scores.h"
#include "colossal/text/verifiers/verifier.h"

namespace colossal::align {

/// A scorer whose score is the weighted sum of verifiers. `parts` has the value of each, without its weight, and `text`
/// what they say, with their names. It scores in add().
class VerifierScorer final : public Scorer {
 public:
  /// `names` are those of verifiers. `weights` has one finite number for each; empty = 1 for each.
  /// Errors ("reward"): no name, a name twice, another number of weights. Errors ("verifier"): an unknown name.
  VerifierScorer(const text::Verifiers& verifiers, const std::vector<std::string>& names,
                 const std::vector<double>& weights = {});

  void check(const text::PromptLine& line) override;
  void add(Answer answer) override;
  /// Errors: those of text::Verifier::verify().
  std::vector<Scored> take(double) override { return waiting_.take(); }
  void forget() override { waiting_.clear(); }
  size_t waiting() const override { return waiting_.count(); }

 private:
  struct Weighted {
    std::string name;
    double weight;
    std::unique_ptr<text::Verifier> verifier;
  };
  std::vector<Weighted> verifiers_;
  WaitingScores waiting_;
};

}  // namespace colossal::align
