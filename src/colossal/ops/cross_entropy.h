// Language-model loss: projection to the vocabulary and cross entropy in one operator. It processes slices of tokens,
// so that the logits of all tokens never exist. It calls no collectives itself: a vocabulary split over ranks is
// reduced through RankReduction.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/ops/projection.h"
#include "colossal/ops/rank_reduction.h"

namespace colossal::ops {

/// Returns the sum over counted tokens of -log softmax(hidden weightT + bias)[label]. The gradients are computed in the
/// same pass. A soft_cap > 0 caps the logits (ops/soft_cap.h); 0 = no cap.
///
/// Shapes:     hidden [T,H], weight [rows,H], bias [rows] or undefined, labels int64 [T] -> scalar: fp64 for fp64
///             inputs, else fp32. Labels are global vocabulary indices or kIgnoredLabel. With a projection that gathers
///             the slices of n ranks, labels are [n,T]. The sum is 0 if no token is counted.
/// Rows:       without reduction and projection, rows of kIgnoredLabel never reach the products (CountedRows), and
///             their gradient is 0. This needs labels on the host: on an accelerator all rows are multiplied, because
///             the host would have to wait for the labels. With a reduction or a projection all rows are, so that the
///             communication does not depend on the data.
/// Reductions: for each slice of t tokens: max of [t], then sum of [2,t], both in the dtype of the loss. The sum holds
///             the sums of exponentials and the label's logit, which one rank has. There are no other reductions. The
///             result is the same on all ranks. `reduction` may be null (identity). Like `projection`, it is used in
///             forward only.
/// Gradient:   of hidden: the contribution of the local rows of the weight; *the caller sums it over the ranks that
///             share the vocabulary* (one reduction of T*H, e.g. by an operator before this one that all-reduces in
///             backward). Of weight: complete for the local rows, zero for padding; the caller sums nothing over those
///             ranks. With a projection: what its gradients() computes. Of the bias: the contribution of this rank's
///             tokens, for the local rows. No gradient is computed if grad mode is off or no input requires one.
/// Errors:     throws, before any reduction, if shapes do not fit, a cap is negative, or a label is neither
///             kIgnoredLabel nor a vocabulary index >= 0. A label that no rank owns counts with target logit 0
///             (without a reduction: throws). Values of labels on an accelerator are not checked.
/// Precision:  losses, d(logits), sums over slices and gradients are wide, i.e. fp32 (fp64 for fp64), until backward
///             multiplies them by the gradient of the loss. The products are then rounded once to the dtype of the
///             model. So fp16 overflows or underflows only if the product does.
/// Cost:       3 products of 2*T*H*rows flops (1 without gradients), all in forward. Backward scales the gradients, and
///             adds dweight in place to the weight's .grad if there is one (ops/gradient_sum.h). A cap adds five passes
///             over the logits. Extra memory: a slice of logits [t, rows], two with a cap and gradients; during forward
///             the weight in fp32 if products are computed in fp32; wide dhidden and dweight, held from forward to
///             backward.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                const VocabularyRange& range = {}, RankReduction* reduction = nullptr,
                                int64_t slice = 0 /* 0 = slice_tokens() for the weight's rows */,
                                Projection* projection = nullptr /* null = the local products; else pass `slice` */,
                                const at::Tensor& bias = {}, double soft_cap = 0);

/// Computes the loss of linear_cross_entropy() from full logits [T,V], by ATen with autograd: the reference.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace colossal::ops
