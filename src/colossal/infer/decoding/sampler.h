// Samples the next token from logits.
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
  double temperature = 0;  ///< 0 = greedy
  int64_t top_k = 0;       ///< number of most probable tokens to sample from; 0 = all
  double top_p = 1;        ///< total probability of the most probable tokens to sample from; 1 = all
  /// Minimum probability of a token, relative to the most probable one (arXiv:2407.01082); 0 = off.
  double min_p = 0;
  int64_t seed = 0;
  /// Divisor of positive logits, and factor of the others, for tokens in the prompt or completion (Keskar et al., CTRL,
  /// arXiv:1909.05858); 1 = off.
  double repetition_penalty = 1;
  /// Subtracted from the logits of tokens in the completion: presence_penalty once, frequency_penalty once per
  /// occurrence; 0 = off.
  double presence_penalty = 0, frequency_penalty = 0;
  std::map<int64_t, double> logit_bias{};  ///< values to add to logits, by token id

  bool changes_logits() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0 || !logit_bias.empty();
  }
  /// Errors ("sampling"): a value out of range.
  void check() const;
};

/// Returns the token that `uniform`, a number in [0, 1), selects from logits [V] of any dtype: int64 [] on their
/// device. The host does not wait. At temperature 0 it is the most probable token. Ties go to the lower id.
at::Tensor pick(const at::Tensor& logits, const SamplingOptions& options, double uniform);

/// Returns the probabilities with which pick() selects tokens, fp64 [V]; filtered tokens have 0. At temperature 0 the
/// most probable token has 1.
at::Tensor probabilities(const at::Tensor& logits, const SamplingOptions& options);

/// A draft token: a proposal for the next token.
struct DraftedToken {
  int64_t token;
  at::Tensor probabilities{};  ///< distribution it was sampled from, fp64 [V]; undefined = not sampled
};

/// Selects the same token as pick() in a loop over host values: the reference for tests.
int64_t pick_reference(const std::vector<double>& logits, const SamplingOptions& options, double uniform);

/// Samples tokens one after another. Random numbers are a function of the seed and of the number of tokens drawn
/// before. All ranks with the same logits therefore draw the same token. Penalties and biases change the logits first.
/// Then each filter applies separately to the resulting probabilities: top_p and min_p consider all tokens, not only
/// the top_k ones.
class Sampler {
 public:
  /// repetition_penalty applies to the tokens of `prompt` in addition to the tokens drawn. Errors: see
  /// SamplingOptions::check().
  explicit Sampler(const SamplingOptions& options, const std::vector<int64_t>& prompt = {});
  /// Returns pick() of logits [V]. Cost: the host waits for the device and copies one number. Penalties also copy a few
  /// numbers per distinct token so far to the device.
  /// Errors ("sampling"): a bias of a token outside the vocabulary.
  int64_t next(const at::Tensor& logits);

  /// Returns a sampler for a draft model that continues from here. It has the same options, applies penalties for the
  /// tokens drawn so far and for its own, and uses its own stream of random numbers.
  Sampler for_draft() const;
  /// Draws a token and returns it with its distribution; at temperature 0 without one.
  DraftedToken draft(const at::Tensor& logits);
  /// Returns a token with the same distribution as next() that is likely to equal the draft token. Let p be the
  /// probabilities of `logits` and q those of the draft. The draft token is accepted with probability min(1, p / q).
  /// Otherwise a token is sampled in proportion to max(p - q, 0). So the mean acceptance rate is sum min(p, q). A draft
  /// token without probabilities has no effect: the result is next(). Source: Leviathan et al., arXiv:2211.17192,
  /// appendix A.1.
  int64_t judge(const at::Tensor& logits, const DraftedToken& drafted);

 private:
  at::Tensor adjusted(const at::Tensor& logits) const;
  double uniform(std::string_view stream) const;
  int64_t drawn(int64_t token);

  SamplingOptions options_;
  std::string_view stream_ = "sampling";  // name of the random stream, a string literal
  uint64_t drawn_ = 0;
  std::map<int64_t, int64_t> times_;  // occurrences in the completion, by token of prompt or completion
};

}  // namespace colossal::infer
