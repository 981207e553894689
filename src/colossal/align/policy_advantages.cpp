#include "colossal/align/policy_advantages.h"

#include <ATen/ATen.h>

#include "colossal/align/advantages.h"

namespace colossal::align {
namespace {

using run::AnswerAdvantage;

/// Returns one number per answer as the advantage of each of its tokens.
at::Tensor of_answers(const std::vector<double>& numbers, const at::Tensor& counts) {
  return at::tensor(numbers, at::kDouble).unsqueeze(1).expand_as(counts).masked_fill(~counts, 0);
}

at::Tensor whitened_over_step(const at::Tensor& values, const at::Tensor& counts) {
  return whitened(values, counts, whitening_sums(values, counts));
}

/// Scores of rows without a token that counts are not read.
std::vector<OptionalScore> known_scores(std::vector<OptionalScore> scores) {
  for (OptionalScore& score : scores) score = score.value_or(0);
  return scores;
}

}  // namespace

std::vector<OptionalScore> scores_with_penalty(const run::PolicyObjective& objective,
                                               const std::vector<RolloutGroup>& groups) {
  std::vector<OptionalScore> scores;
  for (const RolloutGroup& group : groups)
    for (size_t i = 0; i < group.answers.size(); ++i) {
      OptionalScore score = group.scores.at(i).value;
      if (score)
        *score += overlong_penalty(static_cast<int64_t>(group.answers[i].ids.size()), objective.rollout().max_tokens,
                                   objective.keys().policy.overlong);
      scores.push_back(score);
    }
  return scores;
}

at::Tensor kl_of_tokens(const run::PolicyObjective& objective, const PolicyPasses& passes) {
  if (!passes.reference.defined()) return at::zeros(passes.counts.sizes(), at::kDouble);
  return run::kl_terms(passes.old, passes.reference, objective.kl_estimator()).masked_fill(~passes.counts, 0);
}

PolicyAdvantages policy_advantages(const run::PolicyObjective& objective, const std::vector<RolloutGroup>& groups,
                                   const PolicyPasses& passes, double kl) {
  const run::PolicyKeys& keys = objective.keys().policy;
  const int64_t answers = objective.rollout().answers;
  const at::Tensor& counts = passes.counts;
  const at::Tensor terms = kl_of_tokens(objective, passes);
  std::vector<OptionalScore> scores = scores_with_penalty(objective, groups);
  const auto penalized = [&] { return penalized_scores(scores, terms, counts, kl); };
  switch (objective.method().advantage) {
    case AnswerAdvantage::Group: {
      const bool divides = keys.divide_by_spread == "true";
      return {of_answers(group_advantages(scores, answers, divides ? GroupAdvantage::Spread : GroupAdvantage::Mean),
                         counts)};
    }
    case AnswerAdvantage::LeaveOneOut:
      return {of_answers(group_advantages(penalized(), answers, GroupAdvantage::LeaveOneOut), counts)};
    case AnswerAdvantage::Returns: {
      if (keys.baseline == "group") {
        const std::vector<double> own = group_advantages(penalized(), answers, GroupAdvantage::Mean);
        return {whitened_over_step(of_answers(own, counts), counts)};
      }
      const at::Tensor rewards = token_rewards(known_scores(scores), terms, counts, kl);
      return {whitened_over_step(token_returns(rewards, counts, keys.gamma), counts)};
    }
    case AnswerAdvantage::Values: {
      const at::Tensor rewards = token_rewards(known_scores(scores), terms, counts, kl);
      const TokenAdvantages of_tokens =
          token_advantages(rewards, passes.values, counts, {.gamma = keys.gamma, .lambda = keys.lambda});
      return {whitened_over_step(of_tokens.advantages, counts), of_tokens.returns};
    }
  }
  return {};
}

}  // namespace colossal::align
