// Scores of labels: log-probabilities, and entropies of the distributions from which the labels are drawn.
//
//   const ops::TokenScores scores = ops::token_scores(logits, labels, {.temperature = 0.7, .entropy = true});
//   const at::Tensor loss = -(advantages * scores.log_probabilities + 0.01 * scores.entropies).mean();
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Choice of scores; they are of the distribution softmax(logits / temperature).
struct ScoreOptions {
  double temperature = 1;  ///< above 0; capped logits are divided by it
  bool entropy = false;    ///< whether entropies are wanted
};

/// Scores in fp32, or in fp64 for fp64 models. They are 0 where a label is ignored (-100).
struct TokenScores {
  at::Tensor log_probabilities;  ///< natural logarithm of the probability of each label
  at::Tensor entropies;          ///< -sum of p log p over the vocabulary, at each label; undefined unless wanted
};

/// Returns the scores of labels [...] from whole logits [..., V], computed by ATen with autograd. Heads of a few
/// classes use it, and it is the reference of linear_token_scores(), which needs no whole logits.
/// Errors ("token_scores"): a temperature that is not above 0. Labels are not checked.
TokenScores token_scores(const at::Tensor& logits, const at::Tensor& labels, const ScoreOptions& options = {});

/// Checks the options. Errors ("token_scores"): a temperature that is not above 0.
void check_scores(const ScoreOptions& options);

}  // namespace colossal::ops
