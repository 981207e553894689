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

/// How the logits of a slice are computed, and how their sums are joined with those of ranks that have other words.
struct VocabularyPart {
  /// From the tokens of a slice to logits [rows, columns], with autograd. It is called again in backward, so whatever it
  /// refers to outlives the graph.
  std::function<at::Tensor(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& bias)> logits;
  ops::VocabularyRange range{};            ///< which words the columns are
  double soft_cap = 0;                     ///< of LmHeadOptions
  std::function<void(at::Tensor&)> max{};  ///< in place, over ranks that have other words; none: this rank has all
  Unary sum{};                             ///< likewise; its gradient is that of the sum, as it is
};

/// log softmax(logits)[label] of each token: the plain form, by LibTorch's operators with autograd, of what
/// ops::linear_cross_entropy sums up. The weight of each token in a loss may follow from the result.
///
/// Shapes:    tokens [T, H], labels [n, T] where `logits` gathers the slices of n ranks, else [1, T] -> as the labels,
///            in fp32, or fp64 of fp64 logits; 0 where a label is ops::kIgnoredLabel.
/// Gradient:  of tokens, weight and bias, one for all slices: a weight may be used elsewhere, too, as a tied embedding
///            is. They are those of `logits`; those of the slices are added up in the dtype of the weight.
/// Reduction: per slice of t tokens of each of n ranks max of [n t], then sum of [2, n t], in the dtype of the result,
///            in forward and again in backward.
/// Memory:    the logits of a slice, about five times with their gradients. Nothing of a slice is kept for backward,
///            which computes it again.
at::Tensor log_probabilities(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& labels, int64_t slice, const VocabularyPart& words);

}  // namespace colossal::nn
