// Language-model loss: projection to the vocabulary and cross entropy in one operator, in slices of tokens, so that the logits
// of all tokens never exist. Knows no collectives: a vocabulary split over ranks is reduced through VocabularyReduction.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::ops {

/// Label of tokens that do not count.
inline constexpr int64_t kIgnoredLabel = -100;

/// Element-wise reductions over the ranks that share a vocabulary, in place. All those ranks hold the same tokens in the same
/// order and so make the same calls. The base class is the identity: one process that owns all rows.
struct VocabularyReduction {
  virtual ~VocabularyReduction() = default;
  virtual void max(at::Tensor&) {}
  virtual void sum(at::Tensor&) {}
};

/// Which words the local rows of the projection are.
struct VocabularyRange {
  int64_t first = 0;   ///< word of local row 0
  int64_t valid = -1;  ///< local rows that are words; rows behind them are padding, outside the softmax. -1: all
};

/// Sum over counted tokens of -log softmax(hidden weightT)[label], the gradients computed along with it.
///
/// Shapes:     hidden [T,H], weight [rows,H], labels int64 [T] (global word numbers, or kIgnoredLabel) -> scalar: fp64 for
///             fp64 inputs, else fp32. No counted token: 0.
/// Reductions: per slice of t tokens: max of [t], then sum of [2,t] (sum of exponentials; logit of the label, which one rank
///             has), both in the dtype of the loss. None else. The result is the same on all ranks. `reduction` may be null
///             (identity) and is used in forward only.
/// Gradient:   of hidden: this rank's part, W_localT's share; *the caller sums it over the ranks that share the vocabulary*
///             (one reduction of T*H, by putting its all-reduce-in-backward before this operator). Of weight: complete for the
///             local rows, zero for padding; the caller sums nothing over those ranks. If grad mode is off or neither input
///             requires a gradient, none are computed.
/// Errors:     throws, before any reduction, if shapes do not fit or a label is neither kIgnoredLabel nor a word
///             number >= 0; a label that no rank owns counts with target logit 0 (one process: throws).
/// Cost:       3 products of 2*T*H*rows flops (1 without gradients), all in forward; backward scales. Extra memory: a slice
///             [t, rows], and dhidden and dweight held from forward to backward.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                const VocabularyRange& range = {}, VocabularyReduction* reduction = nullptr,
                                int64_t slice_tokens = 0 /* 0: chosen so that a slice of logits takes about 64 MiB */);

/// The same sum from full logits [T,V] by ATen with autograd: the reference.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace colossal::ops
