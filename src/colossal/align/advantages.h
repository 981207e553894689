// Rewards and advantages of answers, in fp64 on the host.
//
//   const at::Tensor kl = run::kl_terms(old, reference, run::KlEstimator::K1);           // PPO
//   const at::Tensor rewards = token_rewards(scores, kl, counts, 0.05);
//   const TokenAdvantages ppo = token_advantages(rewards, values, counts, {.gamma = 1, .lambda = 0.95});
//   at::Tensor sums = whitening_sums(ppo.advantages, counts);
//   group.all_reduce(sums, comm::Reduce::Sum).wait();                                    // over all rows of the step
//   const at::Tensor advantages = whitened(ppo.advantages, counts, sums);
//
//   const std::vector<double> of_answers = group_advantages(scores, 8, GroupAdvantage::Spread);       // GRPO
//
//   const at::Tensor returns = token_returns(rewards, counts, 1);                        // REINFORCE++: whitened()
//
// Shapes: a row is an answer, and B is the number of rows. `counts` [B, T] is true for each token that the policy
// drew. Tensors [B, T] are on the host and of any floating-point type. Results are in fp64, and 0 where `counts` is
// false.
// Errors ("alignment"): a tensor of other sizes, or on another device. No function communicates.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace colossal::align {

/// The score of an answer; empty = an answer without a score.
using OptionalScore = std::optional<double>;

/// Returns the reward of each token, [B, T]: -beta kl, plus the score of the row at its last counted token alone.
/// Errors ("alignment"): a row without a score that has tokens that count; the caller leaves them out of `counts`.
at::Tensor token_rewards(std::span<const OptionalScore> scores, const at::Tensor& kl, const at::Tensor& counts,
                         double beta);

/// Returns the scores less beta times the sum of kl over the counted tokens of their rows. An answer without a score
/// has none afterwards.
std::vector<OptionalScore> penalized_scores(std::span<const OptionalScore> scores, const at::Tensor& kl,
                                            const at::Tensor& counts, double beta);

/// Options of token_advantages().
struct AdvantageOptions {
  double gamma = 1, lambda = 0.95;
};

/// Advantages, and the returns to which a value model is trained, both [B, T].
struct TokenAdvantages {
  at::Tensor advantages, returns;
};

/// Returns generalized advantage estimates (1506.02438) over the counted tokens of each row, from the last to the
/// first: delta = r + gamma V_next - V, A = delta + gamma lambda A_next, return = A + V. Tokens between them that do
/// not count are skipped: V_next and A_next are those of the next counted token. After the last token both are 0, also
/// if the answer was cut there.
TokenAdvantages token_advantages(const at::Tensor& rewards, const at::Tensor& values, const at::Tensor& counts,
                                 const AdvantageOptions& options);

/// Returns the sum of the rewards of a token and of all counted tokens after it, each discounted by gamma once per
/// counted token between, [B, T].
at::Tensor token_returns(const at::Tensor& rewards, const at::Tensor& counts, double gamma);

/// Returns the number, the sum and the sum of squares of the counted values, [3]. The caller sums it over the ranks
/// that have other rows of the step. Rounding moves the variance of n values by at most n 1e-16 (mean^2 + variance).
at::Tensor whitening_sums(const at::Tensor& values, const at::Tensor& counts);

/// Returns (x - mean) / sqrt(variance + 1e-8), [B, T], of mean and variance over all tokens of `sums`. The variance
/// divides by n - 1, and that of one token is 0.
at::Tensor whitened(const at::Tensor& values, const at::Tensor& counts, const at::Tensor& sums);

/// Advantages of the answers to one prompt, from their scores R. Mean, spread and G are those of the answers with a
/// score.
enum class GroupAdvantage {
  Spread,       ///< (R - mean) / (s + 1e-4), s the standard deviation with n - 1 (GRPO, 2402.03300)
  Mean,         ///< R - mean (Dr.GRPO, 2503.20783; the baseline form of REINFORCE++)
  LeaveOneOut,  ///< R - mean of the others = (R - mean) G / (G - 1) (RLOO, 2402.14740)
};

/// Returns the advantage of each answer. Each `answers` scores in succession are those of one prompt. The advantage is
/// exactly 0 for an answer without a score, and for each answer of a group without spread.
/// Errors ("alignment"): scores that are no whole groups.
std::vector<double> group_advantages(std::span<const OptionalScore> scores, int64_t answers, GroupAdvantage kind);

/// Returns true if two answers of a group have different scores. All advantages of other groups are 0.
bool has_spread(std::span<const OptionalScore> group);

/// Returns the penalty of DAPO (2503.14476) for an answer of that many tokens: 0 up to max_tokens - overlong, then
/// (max_tokens - overlong - tokens) / overlong, and -1 above max_tokens. overlong = 0: 0.
double overlong_penalty(int64_t tokens, int64_t max_tokens, int64_t overlong);

/// Returns the weight of the KL for the next step (1909.08593): beta (1 + clip(kl / target - 1, -0.2, 0.2) answers /
/// horizon). `kl` is the mean over the `answers` of the step.
double adapted_kl_weight(double beta, double kl, double target, int64_t answers, double horizon);

}  // namespace colossal::align
