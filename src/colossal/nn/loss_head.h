// Heads that score a vocabulary or classes, fused with their loss.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/nn/forward_context.h"
#include "colossal/ops/token_scores.h"

namespace colossal::nn {

class Embedding;  // nn/embedding.h

/// Projection to the vocabulary fused with cross entropy. Training never holds the logits of all tokens at once.
class LossHead {
 public:
  virtual ~LossHead() = default;
  /// Returns a scalar, the same on all ranks of the model: the sum of the losses of the batch's tokens whose label is
  /// not -100. It is fp32, or fp64 for fp64 models. The caller divides by the number of tokens of the whole global
  /// batch. If the head of this rank communicates for no product and the labels are on the host, rows of other tokens
  /// are not multiplied.
  virtual at::Tensor loss_sum(const at::Tensor& hidden /*[B, S, H]*/, const at::Tensor& labels /*[B, S]*/,
                              const ForwardContext& step) = 0;
  /// Returns an int64 scalar, the same on all ranks of the model: the number of labels other than -100 that the head
  /// finds most probable. Computed a slice of tokens at a time, as losses are.
  virtual at::Tensor found(const at::Tensor& hidden, const at::Tensor& labels, const ForwardContext& step) = 0;
  /// Returns the logarithm of the probability of each label and, if `options` wants it, the entropy of the distribution
  /// at each label: [B, S] of the whole batch on every rank, in fp32 (fp64 in fp64 models), 0 where a label is ignored.
  /// The first three arguments are those of loss_sum(), whose result is the negative sum of the log-probabilities at
  /// temperature 1.
  ///
  /// Gradients: differentiable. Each rank of the model computes the same loss from the results and calls backward() on
  ///            it; the gradients are those of one such loss.
  /// Rows:    rows of `hidden` whose label is ignored never reach the product, and their gradient is 0. So the cost and
  ///          the bytes of tensor parallelism depend on the labels. All rows are kept by 3D layouts, by classifiers,
  ///          for labels on meta (train::record_step) and during the capture of a graph.
  /// Shapes:  if ranks split the sequence, the fields of step.batch have only the tokens that this rank was given
  ///          (SequenceCut::given), but the results have all. A field that the loss needs whole must be declared so
  ///          (tensor::Field::stays_whole).
  /// Memory:  logits exist for one slice at a time, and are computed again in backward.
  /// Cost:    one product more than loss_sum(), which remains the faster way to a plain mean of log-probabilities.
  /// Errors ("token_scores"): a temperature that is not above 0. None for bad labels of classifiers: the caller checks
  ///          the labels before any communication.
  virtual ops::TokenScores scores(const at::Tensor& hidden, const at::Tensor& labels, const ForwardContext& step,
                                  const ops::ScoreOptions& options) = 0;
  /// Returns the log-probabilities of scores() at temperature 1.
  at::Tensor log_probabilities(const at::Tensor& hidden, const at::Tensor& labels, const ForwardContext& step) {
    return scores(hidden, labels, step, {}).log_probabilities;
  }
  /// Returns the logits [B, S, V] of the whole batch on every rank, in the order of the sequence. `hidden` [..., H] is
  /// everything that the rank has of the batch. If no ranks split the sequence, `hidden` may have fewer tokens, because
  /// decoding needs only the last position.
  virtual at::Tensor logits(const at::Tensor& hidden, const ForwardContext& step) = 0;
};

/// Options of the head of a language model.
struct LmHeadOptions {
  double deviation = 0.02;    ///< standard deviation of the initial weight
  Embedding* tied = nullptr;  ///< embedding whose weight the head uses instead of its own; null = not tied
  bool bias = false;          ///< one bias per token of the vocabulary, starting at zero
  double soft_cap = 0;        ///< logits become soft_cap tanh(logits / soft_cap) (Gemma 2); 0 = off
};

}  // namespace colossal::nn
