// Language-model loss: projection to the vocabulary and cross entropy in one operator, in slices of tokens, so that the
// logits of all tokens never exist. Knows no collectives: a vocabulary split over ranks is reduced through
// RankReduction.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/ops/rank_reduction.h"

namespace colossal::ops {

/// Label of tokens that do not count.
inline constexpr int64_t kIgnoredLabel = -100;

/// Which words the local rows of the projection are.
struct VocabularyRange {
  int64_t first = 0;   ///< word of local row 0
  int64_t valid = -1;  ///< local rows that are words; rows behind them are padding, outside the softmax. -1: all
};

/// The three products of the projection, for a layout whose tiles do not fit together locally.
struct Projection {
  virtual ~Projection() = default;
  /// A slice of t rows of hidden -> logits [t, columns], columns >= the valid words; those of other t rows where the
  /// layout moves them, of the labels then; [n * t, columns] where it gathers the slices of n ranks, in rank order.
  virtual at::Tensor logits(const at::Tensor& hidden, const at::Tensor& weight) = 0;
  /// From d(logits) of the slice that came last: writes dhidden [t, .], and adds to dweight. All are fp64 for fp64
  /// weights, else fp32: no factor is in them yet, so fp16 may not hold them, and what is rounded to bf16 on the way is
  /// a slice's share, not the sum. Null: not wanted.
  virtual void gradients(const at::Tensor& logits_gradient, at::Tensor* hidden, at::Tensor* weight) = 0;
};

/// Rows of a slice whose logits take about 64 MiB, on accelerators 512: `tokens` in equal slices.
int64_t slice_tokens(int64_t tokens, int64_t columns, at::Device device = at::kCPU);

/// Sum over counted tokens of -log softmax(hidden weightT + bias)[label], the gradients computed along with it. With a
/// soft_cap, of logits within it (ops/soft_cap.h).
///
/// Shapes:     hidden [T,H], weight [rows,H], bias [rows] or none, labels int64 [T] (global word numbers, or
///             kIgnoredLabel), or [n,T] with a projection that gathers the slices of n ranks -> scalar: fp64 for fp64
///             inputs, else fp32. No counted token: 0.
/// Reductions: per slice of t tokens: max of [t], then sum of [2,t] (sum of exponentials; logit of the label, which one
///             rank has), both in the dtype of the loss. None else. The result is the same on all ranks. `reduction`
///             may be null (identity) and is, like `projection`, used in forward only.
/// Gradient:   of hidden: this rank's part, W_localT's share; *the caller sums it over the ranks that share the
///             vocabulary* (one reduction of T*H, by putting its all-reduce-in-backward before this operator). Of
///             weight: complete for the local rows, zero for padding; the caller sums nothing over those ranks. With a
///             projection: what that returns. Of the bias: the share of this rank's tokens, for the local rows. If
///             grad mode is off or no input requires a gradient, none are computed.
/// Errors:     throws, before any reduction, if shapes do not fit, a cap is negative or a label is neither
///             kIgnoredLabel nor a word number >= 0; a label that no rank owns counts with target logit 0 (one process:
///             throws).
/// Precision:  losses, d(logits), sums over slices and gradients until backward has brought its factor are wide (fp32,
///             or fp64 for fp64); then gradients are rounded to the dtype of the model, once. So fp16 overflows or
///             underflows where the gradient times that factor does.
/// Cost:       3 products of 2*T*H*rows flops (1 without gradients), all in forward; backward scales, and adds dweight
///             to a kept gradient in place. A cap: five passes over the logits. Extra memory: a slice [t, rows], with a
///             cap and gradients two of them, where products are made in fp32 the weight in it, and dhidden and
///             dweight, wide, held from forward to backward.
at::Tensor linear_cross_entropy(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, const VocabularyRange& range = {},
    RankReduction* reduction = nullptr, int64_t slice = 0 /* 0: slice_tokens() of the weight's rows */,
    Projection* projection = nullptr /* null: the local products; otherwise `slice` is given */,
    const at::Tensor& bias = {}, double soft_cap = 0);

/// Computes the same sum from full logits [T,V], by ATen with autograd: the reference.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels);
/// Returns log softmax(logits)[label] for logits [..., V] and labels [...]: the terms of that sum with the other sign.
/// The result [...] is fp32 or, of fp64 logits, fp64. It is 0 where a label is ignored.
at::Tensor log_probabilities(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace colossal::ops
