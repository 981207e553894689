// The metrics of a step that draws answers.
//
//   PolicyMeasures measures(objective);
//   measures.add(objective.measure(model, end, step));          // each micro-batch, on the ranks of the last stage
//   measures.end_update(engine.train_step(...));                // the mean loss
//   outcome.rows = measures.rows(engine, groups, rows, passes);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/align/policy_advantages.h"
#include "colossal/align/policy_rows.h"
#include "colossal/base/metric.h"
#include "colossal/run/objectives/alignment/policy_objective.h"
#include "colossal/train/engine.h"

namespace colossal::align {

/// Sums what the updates of a step measure.
class PolicyMeasures {
 public:
  explicit PolicyMeasures(const run::PolicyObjective& objective) : objective_(objective) {}

  void add(const run::PolicyObjective::Measured& measured);
  void end_update(double loss, double value_loss = 0);

  double last_loss() const { return last_loss_; }
  /// Returns the mean of the losses of the updates.
  double mean_loss() const { return updates_ > 0 ? losses_ / static_cast<double>(updates_) : 0; }
  /// Returns the metrics, the same on all ranks: reward and reward_deviation over the answers with a score, a mean for
  /// each named part of scores, kl (the mean of the tokens' estimates, with a reference), entropy and clipped_share (of
  /// the tokens of rows that learn; left out if none does), sampler_difference (of the tokens of the first update, or
  /// of all if a pass computed their log-probabilities), answer_tokens (mean), truncated_share, zero_spread_groups
  /// (of several answers), value_loss (with a value model), unscored_answers (if there are some).
  /// Communication: over "pipeline" and the axes that split rows, an all_reduce
  /// of [4] and one of [1].
  std::vector<Metric> rows(train::Engine& engine, const std::vector<RolloutGroup>& groups, const PolicyRows& rows,
                           const PolicyPasses& passes) const;

 private:
  const run::PolicyObjective& objective_;
  std::vector<at::Tensor> sums_;
  at::Tensor difference_;  // largest of the first update
  int64_t updates_ = 0;
  double losses_ = 0, value_losses_ = 0, last_loss_ = 0;
};

}  // namespace colossal::align
