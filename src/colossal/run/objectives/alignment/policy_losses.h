// Losses of policies and value models, as functions of the log-probabilities and values of tokens.
//
//   const PolicyTokens tokens{scores.log_probabilities, old, advantages, counts};
//   const TokenTerms policy = policy_losses(tokens, {.clip_high = 0.28});
//   const at::Tensor terms = policy.losses * importance_weights(old, sampled, 2) - 0.01 * scores.entropies +
//                            0.04 * kl_terms(scores.log_probabilities, reference, KlEstimator::K3);
//   const at::Tensor loss = loss_sum(terms, counts, LossMean::Token);        // what Objective::loss() returns
//   const double weight = loss_weight(counts, LossMean::Token, max_tokens);  // what Objective::weight() returns
//
// Shapes: B rows, each with all tokens of one answer, and T columns. `counts` [B, T] is true for each token that is
// trained. Log-probabilities, values and terms are [B, T]. Elements that do not count may be any finite numbers.
//
// The loss of a training step is a mean over the global batch. A function of this file returns terms, and loss_sum()
// adds those of a micro-batch. The engine divides by the sum of loss_weight() over all rows of the global batch. So the
// loss does not depend on how rows are divided over micro-batches and ranks.
//
// Arguments other than the first are moved to its device and dtype. The log-probabilities and values of the first
// argument alone get gradients. No function but loss_weight() waits for a device.
//
// The logarithm of a ratio of probabilities is held within +-20 before it becomes an exponent, so that terms of finite
// arguments are finite. Beyond, its gradient is 0.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::run {

/// Ways to average terms of tokens over the global batch. A sequence is a row with a token that counts.
enum class LossMean {
  Token,     ///< sum / tokens that count; the weight is their number
  Sequence,  ///< mean of the means of sequences; the weight is the number of sequences
  Constant,  ///< sum / (sequences * L), L the most new tokens of an answer; the weight is sequences * L
};

/// Returns the sum over a micro-batch of the terms that count, as a scalar. With LossMean::Sequence it is the sum of
/// the means of rows. Terms that do not count get no gradient.
at::Tensor loss_sum(const at::Tensor& terms, const at::Tensor& counts, LossMean mean);

/// Returns the weight of the rows of `counts`, to be summed over the global batch. `max_tokens` is L of
/// LossMean::Constant. Cost: waits for the device of `counts`; on meta it is 0.
double loss_weight(const at::Tensor& counts, LossMean mean, int64_t max_tokens);

/// Estimators of the KL divergence of a policy from its reference, with d = lp - lp_ref, of tokens that were drawn from
/// the policy (joschu.net/blog/kl-approx). k1 and k3 are unbiased values, but the gradient of k2 alone is that of the
/// divergence.
enum class KlEstimator {
  K1,      ///< d
  K2,      ///< d^2 / 2
  K3,      ///< exp(-d) - 1 + d, which is never negative
  K3Plus,  ///< the value of k3, with the gradient of k2
};

/// Returns the estimate of each token. The reference gets no gradient.
at::Tensor kl_terms(const at::Tensor& log_probabilities, const at::Tensor& reference, KlEstimator estimator);

/// Returns the truncated importance weight of each token, min(exp(old - sampled), cap), without a gradient. `sampled`
/// are the log-probabilities with which the tokens were drawn. The weights multiply the policy's part of a loss, not
/// its KL or entropy.
at::Tensor importance_weights(const at::Tensor& old, const at::Tensor& sampled, double cap);

/// The ratio q of new to old probability.
enum class PolicyRatio {
  Token,     ///< exp(lp - old) of each token
  Sequence,  ///< exp(mean of lp - old) over the counted tokens of a row, with gradients to all of them (2507.18071)
};

/// The policy's loss.
enum class PolicyLoss {
  Clip,   ///< -min(q A, clip(q, 1 - clip_low, 1 + clip_high) A) (1707.06347)
  Cispo,  ///< -min(q, 1 + clip_high) A lp, where the ratio has no gradient (2506.13585)
};

/// Options of policy_losses().
struct PolicyOptions {
  PolicyLoss loss = PolicyLoss::Clip;
  PolicyRatio ratio = PolicyRatio::Token;
  double clip_low = 0.2, clip_high = 0.2;  ///< range of the ratio below and above 1; clip_low is at most 1
  double dual_clip = 0;  ///< c: the term of a negative advantage is at most -c A (1912.09729); above 1; 0 = off
};

/// What the policy's loss reads.
struct PolicyTokens {
  at::Tensor log_probabilities;  ///< of the policy that is trained
  at::Tensor old;                ///< log-probabilities of the same tokens before the first update of the step
  at::Tensor advantages;         ///< A: [B, T], or [B, 1] for one number per answer
  at::Tensor counts;
};

/// Terms of tokens, [B, T].
struct TokenTerms {
  at::Tensor losses;
  at::Tensor clipped;  ///< true for each counted token whose ratio or value was replaced by a bound, without gradient
};

/// Returns the policy's loss of each token.
TokenTerms policy_losses(const PolicyTokens& tokens, const PolicyOptions& options);

/// Returns the loss of a value model of each token: 0.5 max[(V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2].
/// `old` are the values before the first update of the step, `returns` is R. clip = 0: 0.5 (V - R)^2. The mean is
/// LossMean::Token.
TokenTerms value_losses(const at::Tensor& values, const at::Tensor& old, const at::Tensor& returns,
                        const at::Tensor& counts, double clip);

}  // namespace colossal::run
