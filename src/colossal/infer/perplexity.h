// Measures how well a model predicts texts: the mean negative log-likelihood of their tokens.
//
//   const infer::Likelihood of = infer::likelihood(*saved.model, {tokenizer->encode_prompt(text)}, {});
//   of.perplexity();
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/distributed/distributed_model.h"

namespace colossal::infer {

struct LikelihoodOptions {
  int64_t window = 0;  ///< tokens that the model reads at once; 0 = the model's positions
  int64_t stride = 0;  ///< tokens between the starts of two windows, at most `window`; 0 = window
};

struct Likelihood {
  double sum = 0;      ///< sum of the negative natural logarithms of the predicted tokens' probabilities
  int64_t tokens = 0;  ///< number of predicted tokens

  double mean() const { return sum / static_cast<double>(tokens); }
  double perplexity() const;
  /// Returns bits per byte if the tokens stand for `bytes` bytes.
  double bits_per_byte(int64_t bytes) const;
};

/// Computes the likelihood of texts, given as token ids with the special tokens that the model expects. A window reads
/// tokens [b, b + window) and predicts the token after each. Every token of a text but its first counts once, in the
/// first window that predicts it. With a stride of half a window, each counted token after the first window has at
/// least half a window of context. This takes twice the time.
///
/// Numerics:      those of nn::LossHead::log_probabilities, i.e. logarithms in at least fp32; sums in fp64.
/// Memory:        a slice of logits at a time.
/// Cost:          the head multiplies only tokens whose predictions count.
/// Communication: one forward pass per window, nn::LossHead::log_probabilities, and in a pipeline the sum of each
///                window. All ranks of a layout must call it with equal texts.
/// Errors ("perplexity"): a model that does not predict the next token; a window longer than its positions, a stride
///                        longer than the window; ids outside the vocabulary; no text with at least two tokens. They
///                        are raised before any communication. Errors of the model's forward passes.
Likelihood likelihood(distributed::DistributedModel& model, const std::vector<std::vector<int64_t>>& texts,
                      const LikelihoodOptions& options);

}  // namespace colossal::infer
