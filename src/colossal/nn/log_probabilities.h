// Log-probabilities of labels, from hidden states and the weight of a vocabulary, in slices of tokens.
//
//   const nn::VocabularyPart words{.logits = [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
//     return nn::linear(x, w, b);
//   }};
//   const at::Tensor values = nn::log_probabilities(hidden, weight, {}, labels, 256, words);   // 256 tokens at a time
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "colossal/nn/recompute.h"
#include "colossal/ops/cross_entropy.h"

namespace colossal::nn {

/// How this rank computes the logits of a slice and combines its sums with those of ranks that hold other parts of the
/// vocabulary.
struct VocabularyPart {
  /// Returns the logits [rows, columns] of the tokens of a slice, with autograd. Backward calls it again, so everything
  /// that it refers to must outlive the graph.
  std::function<at::Tensor(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& bias)> logits;
  ops::VocabularyRange range{};  ///< token ids of the logits' columns
  double soft_cap = 0;           ///< LmHeadOptions::soft_cap; 0 = off
  /// Computes, in place, the maximum over the ranks that share the vocabulary; null = this rank has all of it
  std::function<void(at::Tensor&)> max{};
  /// Returns the sum over the same ranks; the gradient passes through unchanged. Null = this rank has all of it
  Unary sum{};
};

/// Returns log softmax(logits)[label] of each token, computed by LibTorch's operators with autograd. The values are the
/// negative terms of the sum that ops::linear_cross_entropy computes. The weight of a token in a loss may depend on the
/// results.
///
/// Shapes:    tokens [T, H], labels [1, T], or [n, T] if `logits` gathers the slices of n ranks. The result has the
///            shape of the labels, in fp32 or, of fp64 logits, fp64. It is 0 where a label is ops::kIgnoredLabel.
/// Gradient:  for tokens, weight and bias, as `logits` computes it. All slices together give one gradient of the
///            weight, so other layers may use the weight too, like a tied embedding. Gradients of slices are added in
///            the dtype of the weight.
/// Reduction: for a slice of t tokens of each of n ranks a maximum of [n t] and a sum of [2, n t] elements, in the
///            dtype of the result, in forward and again in backward.
/// Memory:    about five times the logits of a slice. Backward computes a slice again, and no tensor of it is kept.
at::Tensor log_probabilities(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& labels, int64_t slice, const VocabularyPart& words);

}  // namespace colossal::nn
