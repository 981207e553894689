// How well a model predicts a text: the mean negative log-likelihood of its tokens.
//
//   const infer::Likelihood of = infer::likelihood(*saved.model, {tokenizer->encode_prompt(text)}, {});
//   of.perplexity();
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/run/streamed_weights.h"

namespace colossal::infer {

struct LikelihoodOptions {
  int64_t window = 0;  ///< tokens that the model reads at once; 0: its positions
  int64_t stride = 0;  ///< tokens from the begin of a window to that of the next, at most a window; 0: a window
  run::StreamedWeights* weights = nullptr;  ///< the model's, where they come and go
};

struct Likelihood {
  double sum = 0;      ///< of the negative natural logarithms of the predicted tokens' probabilities
  int64_t tokens = 0;  ///< that were predicted

  double mean() const { return sum / static_cast<double>(tokens); }
  double perplexity() const;
  /// Of tokens that stand for so many bytes.
  double bits_per_byte(int64_t bytes) const;
};

/// Of texts (ids with the special tokens that the model expects). A window reads tokens [b, b + window) and predicts
/// the next of each; every token of a text but its first counts once, in the first window that predicts it. So with a
/// stride of half a window all tokens behind the first window have at least that much in front, for twice the time.
///
/// Numbers:       logits in the dtype of the model, their logarithms in at least fp32, sums in fp64.
/// Memory:        logits of 256 tokens at a time.
/// Communication: that of a forward pass a window and of the logits; all ranks of a layout must call with equal texts.
/// Errors ("perplexity"): a model that is not asked for the next token; windows beyond its positions, strides beyond
///                the window; ids outside the vocabulary; texts none of which has two tokens. Before any communication.
///                Those of StreamedWeights::end_pass().
Likelihood likelihood(distributed::DistributedModel& model, const std::vector<std::vector<int64_t>>& texts,
                      const LikelihoodOptions& options);

}  // namespace colossal::infer
