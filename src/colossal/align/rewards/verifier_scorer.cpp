#include "colossal/align/rewards/verifier_scorer.h"

#include <cmath>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"

namespace colossal::align {

VerifierScorer::VerifierScorer(const text::Verifiers& verifiers, const std::vector<std::string>& names,
                               const std::vector<double>& weights) {
  require(!names.empty(), "reward", "a reward must have at least one verifier: got none");
  require(weights.empty() || weights.size() == names.size(), "reward",
          "weights must have one number for each verifier: got ", weights.size(), " for ", join(names));
  std::set<std::string> known;
  for (size_t i = 0; i < names.size(); ++i) {
    const double weight = weights.empty() ? 1 : weights[i];
    require(std::isfinite(weight), "reward", "a weight must be a finite number: got ", weight, " for ", names[i]);
    const text::VerifierRow& row = verifiers.at(names[i]);
    require(known.insert(names[i]).second, "reward", "verifiers must differ: got ", names[i], " twice; remove one");
    verifiers_.push_back({names[i], weight, row.make()});
  }
}

void VerifierScorer::check(const text::PromptLine& line) {
  for (const Weighted& one : verifiers_) one.verifier->check(line);
}

void VerifierScorer::add(Answer answer) {
  if (!waiting_.add(answer.id)) return;
  Score score{.value = 0};
  try {
    for (const Weighted& one : verifiers_) {
      const text::Verdict verdict = one.verifier->verify(*answer.line, answer.completion);
      *score.value += one.weight * verdict.value;
      score.parts.emplace_back(one.name, verdict.value);
      if (!verdict.text.empty()) score.text += concat(score.text.empty() ? "" : "; ", one.name, ": ", verdict.text);
    }
  } catch (const Error& error) {
    return waiting_.fail(error);
  }
  waiting_.set({std::move(answer.id), std::move(score)});
}

}  // namespace colossal::align
