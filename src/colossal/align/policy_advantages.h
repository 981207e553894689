// The advantages of the answers of a step, by the method of [alignment].
//
//   const PolicyAdvantages a = policy_advantages(objective, groups, {.counts = rows.counts, .old = old}, /*kl=*/0.05);
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "colossal/align/rollouts/rollout_groups.h"
#include "colossal/run/objectives/alignment/policy_objective.h"

namespace colossal::align {

/// Tensors on which advantages depend in addition to scores: all R rows of a step, [R, S] on the host.
struct PolicyPasses {
  at::Tensor counts;             ///< bool: tokens that are trained
  at::Tensor old{};              ///< fp64: log-probabilities before the first update
  at::Tensor reference{};        ///< fp64: of the reference; undefined = the run has none
  at::Tensor values{};           ///< fp64: values before the first update; undefined = the method has none
  bool is_old_computed = false;  ///< true: by a pass; false: `old` are the log-probabilities of the draws
};

/// Both are [R, S] in fp64, and 0 where a token does not count.
struct PolicyAdvantages {
  at::Tensor advantages;
  at::Tensor returns{};  ///< targets of the value model; undefined = the method has none
};

/// Returns the scores of all answers, with the penalty of alignment.overlong.
std::vector<OptionalScore> scores_with_penalty(const run::PolicyObjective& objective,
                                               const std::vector<RolloutGroup>& groups);

/// Returns the KL estimate of each token by alignment.kl_estimator, [R, S] in fp64; zeros without a reference.
at::Tensor kl_of_tokens(const run::PolicyObjective& objective, const PolicyPasses& passes);

/// Returns the advantages. `kl`: the weight of the KL in rewards, of methods whose loss does not have it. The result
/// depends on the whole step alone, so every rank computes the same.
PolicyAdvantages policy_advantages(const run::PolicyObjective& objective, const std::vector<RolloutGroup>& groups,
                                   const PolicyPasses& passes, double kl);

}  // namespace colossal::align
