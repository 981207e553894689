// Losses of preferences, as functions of the log-probabilities or scores of whole answers.
//
//   const at::Tensor ratios = log_ratios(policy, reference);                             // [B, 2]
//   const at::Tensor loss = dpo_losses(ratios.select(1, 0) - ratios.select(1, 1), {.beta = 0.1}).mean();
//
// S is the sum of log-probabilities over an answer, and n its number of tokens. Arguments and results are [B], one for
// each pair, ranking or item, in the dtype of the arguments, and differentiable. No function waits for a device.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::run {

/// Returns S - S of the reference, of any sizes, which both arguments have.
at::Tensor log_ratios(const at::Tensor& sums, const at::Tensor& reference);

/// Returns log(1 + exp(x)) without overflow, exact to rounding for all x. The default of at::softplus() is off by up to
/// 2e-9.
at::Tensor stable_softplus(const at::Tensor& x);

/// The losses of DPO (2305.18290).
enum class DpoLoss {
  Sigmoid,  ///< softplus(-beta h); with smoothing e conservative DPO: (1-e) softplus(-beta h) + e softplus(beta h)
  Robust,   ///< [(1-e) softplus(-beta h) - e softplus(beta h)] / (1-2e) (2403.00409)
  Hinge,    ///< max(0, 1 - beta h) (SLiC, 2305.10425)
};

/// Options of dpo_losses().
struct DpoOptions {
  double beta = 0.1;
  DpoLoss loss = DpoLoss::Sigmoid;
  double smoothing = 0;  ///< e, the share of pairs whose order is wrong; below 0.5
};

/// h [B]: the log-ratio of the chosen answer, S - S of the reference, minus that of the rejected one.
at::Tensor dpo_losses(const at::Tensor& h, const DpoOptions& options);

/// (h - 1/(2 beta))^2 (2310.12036). In h, log-ratios are sums over the answers, or means over their tokens.
at::Tensor ipo_losses(const at::Tensor& h, double beta);

/// softplus(-(beta (chosen - rejected) - margin)) of the means S/n (2405.14734).
at::Tensor simpo_losses(const at::Tensor& chosen, const at::Tensor& rejected, double beta, double margin);

/// The logarithm of the ratio of odds p/(1-p) with p = exp(S/n) (2403.07691), from the means S/n. A mean of 0 counts as
/// the largest number below it, because the odds of p = 1 are infinite.
at::Tensor log_odds_ratios(const at::Tensor& chosen, const at::Tensor& rejected);

/// Returns the weight of each pair of the answers of a row, [B, K, K]: 1 / (number of pairs of the row) at [b, i, j] if
/// i < j and both answers count, else 0. counts [B, K]: not 0 = the answer counts. Rows with fewer than two have zeros.
at::Tensor pair_weights(const at::Tensor& counts);

/// Losses of reward models (2203.02155, 2312.09244), [B]: the mean over the pairs of a row of softplus(-(r_i - r_j -
/// margin)) + centre (r_i + r_j)^2. scores [B, K]: r of the answers, the best first; counts as of pair_weights();
/// margins [B].
at::Tensor reward_losses(const at::Tensor& scores, const at::Tensor& counts, const at::Tensor& margins, double centre);

/// Options of kto_losses().
struct KtoOptions {
  double beta = 0.1, desirable_weight = 1, undesirable_weight = 1;
};

/// KTO (2402.01306) with s = sigmoid: desirable_weight (1 - s(beta (ratios - z))) of desirable answers, and
/// undesirable_weight (1 - s(beta (z - ratios))) of others. ratios [B]: S - S of the reference. desirable [B]: not 0 =
/// desirable. z, [B] or a scalar, gets no gradient: the mean of the log-ratios of mismatched answers over the global
/// batch, at least 0.
at::Tensor kto_losses(const at::Tensor& ratios, const at::Tensor& desirable, const at::Tensor& z,
                      const KtoOptions& options);

}  // namespace colossal::run
