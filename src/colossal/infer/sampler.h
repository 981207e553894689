// The next token from logits.
//
//   infer::Sampler sampler({.temperature = 0.8, .top_p = 0.95, .seed = 7});
//   const int64_t token = sampler.next(logits);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

namespace colossal::infer {

struct SamplingOptions {
  double temperature = 0;  ///< 0: greedy
  int64_t top_k = 0;       ///< only the k most probable; 0: all
  double top_p = 1;        ///< only the most probable that together reach this probability
  double min_p = 0;        ///< only those of at least this share of the largest probability (arXiv:2407.01082)
  int64_t seed = 0;
  /// Logits of tokens that the prompt or the answer has are divided by it where positive, else multiplied (Keskar and
  /// others, CTRL, arXiv:1909.05858); 1: none
  double repetition_penalty = 1;
  /// Taken from logits of tokens that the answer has, and from them again for each time that it has them
  double presence_penalty = 0, frequency_penalty = 0;
  std::map<int64_t, double> logit_bias{};  ///< added to the logits of tokens

  bool changes_logits() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0 || !logit_bias.empty();
  }
  /// Errors ("sampling"): options that mean nothing.
  void check() const;
};

/// The token that `uniform`, a number in [0, 1), picks of logits [V] of any dtype: int64 [], on their device, for which
/// the host does not wait. Of temperature 0 the most probable. Ties go to the lower id.
at::Tensor pick(const at::Tensor& logits, const SamplingOptions& options, double uniform);

/// What pick() draws by: fp64 [V], 0 of tokens that are left out; at temperature 0 that of the most probable is 1.
at::Tensor probabilities(const at::Tensor& logits, const SamplingOptions& options);

/// A token that somebody expects next.
struct DraftedToken {
  int64_t token;
  at::Tensor probabilities{};  ///< by which it was drawn: fp64 [V]; undefined: it was not drawn
};

/// Picks the token that pick() picks, in a loop over values on the host: the reference.
int64_t pick_reference(const std::vector<double>& logits, const SamplingOptions& options, double uniform);

/// Draws one token after another from a stream of its own, a function of the seed and of how many were drawn: every
/// rank that holds the same logits draws the same token. Penalties and biases change logits first, then all else is
/// asked of the probabilities that are left, each by itself: top_p and min_p look at all tokens, not at those of top_k.
class Sampler {
 public:
  /// `prompt`: what repetition_penalty counts beside the tokens drawn. Errors: those of SamplingOptions::check().
  explicit Sampler(const SamplingOptions& options, const std::vector<int64_t>& prompt = {});
  /// pick() of logits [V]. Cost: the host waits for the device, from which one number comes. With penalties: as many
  /// numbers as there are different tokens so far.
  /// Errors ("sampling"): a bias of a token outside the vocabulary.
  int64_t next(const at::Tensor& logits);

  /// One for a model that writes a draft from here on: with the same options, penalties by what was drawn so far and
  /// what it drafts, and draws of its own.
  Sampler for_draft() const;
  /// next(), and what it was drawn by; at temperature 0 nothing.
  DraftedToken draft(const at::Tensor& logits);
  /// A token of the same distribution as next(), which is likely the drafted one: that stays with probability
  /// min(1, p / q), where p of it are the probabilities here and q those it was drawn by; otherwise one is drawn by
  /// what p has more than q. So it stays with probability sum min(p, q) in the mean. One that was not drawn changes
  /// nothing: it is next(). Source: Leviathan and others, arXiv:2211.17192, appendix A.1.
  int64_t judge(const at::Tensor& logits, const DraftedToken& drafted);

 private:
  at::Tensor adjusted(const at::Tensor& logits) const;
  double uniform(std::string_view stream) const;
  int64_t drawn(int64_t token);

  SamplingOptions options_;
  std::string_view stream_ = "sampling";  // of literals
  uint64_t drawn_ = 0;
  std::map<int64_t, int64_t> times_;  // of tokens of prompt and answer: how often the answer has them
};

}  // namespace colossal::infer
