// Log-probabilities of labels, and entropies of the distributions from which they are drawn, from hidden states and the
// weight of a vocabulary. No tensor [tokens, vocabulary] exists, neither in forward nor in backward.
//
//   const ops::TokenScores scores = ops::linear_token_scores(hidden, weight, {}, labels, {.entropy = true});
//   const at::Tensor loss = -(advantages * scores.log_probabilities).sum() - 0.01 * scores.entropies.sum();
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "colossal/ops/projection.h"
#include "colossal/ops/rank_reduction.h"
#include "colossal/ops/token_scores.h"

namespace colossal::ops {

/// A vocabulary, or a projection, that this process does not have alone; the default is one process.
struct SharedProjection {
  VocabularyRange range{};
  /// reductions over the ranks that share the vocabulary, used in forward only; null = this rank has all of it
  RankReduction* reduction = nullptr;
  /// makes the products of one pass; it is called in forward and again in backward, so everything that it refers to
  /// must outlive the graph. Null = the products of this process
  std::function<std::unique_ptr<Projection>()> products{};
  int64_t slice = 0;  ///< tokens whose logits exist at a time; 0 = chosen by the size of the logits
  int64_t words = 0;  ///< words of them; 0 = chosen. With `products` all of this rank's words
  /// true = logits of `products` include the bias, of which the operator only computes the gradient
  bool products_add_bias = false;
};

/// Returns log softmax(cap(hidden weightT + bias) / temperature)[label] of each token, and the entropies if wanted. The
/// loss decides about weights of tokens later.
///
/// Shapes:     hidden [T,H], weight [rows,H], bias [rows] or undefined, labels int64 [T] -> [T]. With products that
///             gather the slices of n ranks, labels and results are [n,T].
/// Rows:       rows whose label is kIgnoredLabel never reach the products (CountedRows), and their gradient is 0. With
///             `products` they do: the caller leaves them out, because it knows which ranks must agree on their number.
/// Reductions: once for all T tokens, in forward: a maximum of [n,T], then a sum of [2,n,T] (sums of exponentials and
///             the label's logit) or, with entropies, [3,n,T], in the dtype of the result. Backward: none.
/// Gradient:   of log-probabilities and entropies, for hidden, weight and bias. It uses logits that are computed again.
///             Without `products` it is complete; with them it is what they compute. The weight's gradient is one for
///             all slices, added in place to the weight's .grad if there is one (ops/gradient_sum.h).
/// Errors:     those of check_projected() ("token_scores"), and a temperature that is not above 0.
/// Precision:  logits, sums and gradients of logits are wide, i.e. fp32 (fp64 for fp64). The sums of gradients over
///             tokens and words are wide, too, and rounded once to the dtype of the model.
/// Cost:       4 products of 2*T*H*rows flops (1 without gradients). A cap adds five passes over the logits.
/// Memory:     a slice of logits: 4 MiB on the CPU, 512 MiB on accelerators; with `products` 64 MiB on the CPU. Kept
///             for backward: hidden and 4 elements per token. During backward the gradients, of hidden in the wide
///             dtype.
TokenScores linear_token_scores(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                                const at::Tensor& labels, const ScoreOptions& options = {}, double soft_cap = 0,
                                const SharedProjection& shared = {});

/// Returns the scores of labels int64 [T] from whole logits [T, V], without autograd. They have the bits of
/// linear_token_scores() if its `products` compute these logits, for any tokens beside each other: each row is
/// computed by itself. `room`: number of words of each rank that shares the vocabulary there; 0 = one rank has all.
/// Sums over ranks are added in their order, which equals a reduction over two ranks.
/// Errors ("token_scores"): sizes that do not fit; a temperature that is not above 0. Labels are not checked.
TokenScores logit_scores(const at::Tensor& logits, const at::Tensor& labels, const ScoreOptions& options = {},
                         int64_t room = 0);

}  // namespace colossal::ops
