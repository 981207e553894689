#include "colossal/run/objectives/alignment/policy_losses.h"

#include <ATen/ATen.h>

#include "colossal/tensor/host_value.h"

// Steps are also recorded on meta, where where(), abs(), logical_and() and the gradients of clamp(), minimum() and
// maximum() do not run. Bounds are therefore filled in by masks.

namespace colossal::run {
namespace {

// exp(20) = 5e8 is far beyond every clip. The sum of many such terms and their squares fit fp32.
constexpr double kLargestLogRatio = 20;

at::Tensor held_below(const at::Tensor& x, double bound) { return x.masked_fill(x > bound, bound); }
at::Tensor held_above(const at::Tensor& x, double bound) { return x.masked_fill(x < bound, bound); }

at::Tensor counts_on(const at::Tensor& counts, const at::Tensor& terms) { return counts.to(terms.device(), at::kBool); }

/// Returns the means over the counted tokens of each row, [B, 1]. That of a row without any is 0.
at::Tensor row_means(const at::Tensor& terms, const at::Tensor& counts) {
  return terms.masked_fill(~counts, 0).sum(1, true) / counts.sum(1, true).clamp_min(1);
}

}  // namespace

at::Tensor loss_sum(const at::Tensor& terms, const at::Tensor& counts, LossMean mean) {
  const at::Tensor counted = counts_on(counts, terms);
  if (mean == LossMean::Sequence) return row_means(terms, counted).sum();
  return terms.masked_fill(~counted, 0).sum();
}

double loss_weight(const at::Tensor& counts, LossMean mean, int64_t max_tokens) {
  if (mean == LossMean::Token) return tensor::host_value(counts.sum());
  const double sequences = tensor::host_value(counts.any(1).sum());
  return mean == LossMean::Constant ? sequences * static_cast<double>(max_tokens) : sequences;
}

at::Tensor kl_terms(const at::Tensor& log_probabilities, const at::Tensor& reference, KlEstimator estimator) {
  const at::Tensor d = log_probabilities - reference.to(log_probabilities).detach();
  if (estimator == KlEstimator::K1) return d;
  const at::Tensor k2 = 0.5 * d.square();
  if (estimator == KlEstimator::K2) return k2;
  const at::Tensor held = held_above(d, -kLargestLogRatio), k3 = at::expm1(-held) + held;
  // The difference of k2 from itself is 0, and its gradient is that of k2.
  return estimator == KlEstimator::K3 ? k3 : k3.detach() + (k2 - k2.detach());
}

at::Tensor importance_weights(const at::Tensor& old, const at::Tensor& sampled, double cap) {
  return held_below(at::exp(old.detach() - sampled.to(old).detach()), cap);
}

TokenTerms policy_losses(const PolicyTokens& tokens, const PolicyOptions& options) {
  const at::Tensor& lp = tokens.log_probabilities;
  const at::Tensor counts = counts_on(tokens.counts, lp), advantages = tokens.advantages.to(lp).detach();
  at::Tensor log_ratios = lp - tokens.old.to(lp).detach();
  if (options.ratio == PolicyRatio::Sequence) log_ratios = row_means(log_ratios, counts);
  log_ratios = held_above(held_below(log_ratios, kLargestLogRatio), -kLargestLogRatio);
  const at::Tensor ratios = at::exp(log_ratios).expand_as(lp);
  const double low = 1 - options.clip_low, high = 1 + options.clip_high;
  if (options.loss == PolicyLoss::Cispo)
    return {-held_below(ratios.detach(), high) * advantages * lp, (ratios > high) & counts};
  // The lesser of both products is that of a ratio with one bound, above for A > 0 and below for A < 0.
  const at::Tensor above = (ratios > high) & (advantages > 0), below = (ratios < low) & (advantages < 0);
  at::Tensor bounded = ratios.masked_fill(above, high).masked_fill(below, low), clipped = above | below;
  if (options.dual_clip > 0) {
    const at::Tensor far = (ratios > options.dual_clip) & (advantages < 0);
    bounded = bounded.masked_fill(far, options.dual_clip);
    clipped = clipped | far;
  }
  return {-bounded * advantages, clipped & counts};
}

TokenTerms value_losses(const at::Tensor& values, const at::Tensor& old, const at::Tensor& returns,
                        const at::Tensor& counts, double clip) {
  const at::Tensor target = returns.to(values).detach();
  const at::Tensor losses = 0.5 * (values - target).square();
  if (clip == 0) return {losses, at::zeros_like(counts_on(counts, values))};
  const at::Tensor before = old.to(values).detach(), change = values.detach() - before;
  const at::Tensor held = held_above(held_below(change, clip), -clip);
  const at::Tensor of_bound = 0.5 * (before + held - target).square();
  // Values within the range keep their gradient, even if before + change rounds to a larger loss.
  const at::Tensor clipped = (held != change) & (of_bound > losses);
  return {losses.masked_fill(clipped, 0) + of_bound.masked_fill(~clipped, 0), clipped & counts_on(counts, values)};
}

}  // namespace colossal::run
