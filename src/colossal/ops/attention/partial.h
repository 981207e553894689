// Attention of queries over a part of their keys, for sequences that are sharded over ranks. The partial results of all
// parts of the keys, merged in any order, equal ops::attention over all keys.
//
//   AttentionMask mask{.queries = {{0, 512}, {3584, 512}}};
//   PartialAttention whole;
//   for (const Keys& part : parts) {                 // of a ring of ranks for instance
//     mask.keys = part.runs;
//     merge(whole, partial_attention(q, part.k, part.v, mask));
//   }
//   const at::Tensor out = whole.out.to(q.scalar_type());
//   ...                                              // backward, for the gradient dout of out: the sums over the parts
//   const AttentionGradients d = partial_attention_backward(dout, q, part.k, part.v, mask, whole);
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention/attention.h"

namespace colossal::ops {

/// Result of attention over the keys seen so far. It is fp64 for fp64 inputs, else fp32; narrower inputs are widened
/// first. Both tensors are undefined if no query sees any of the keys.
struct PartialAttention {
  at::Tensor out;       ///< [B,N,S,D]: softmax over those keys times their values; zeros if a query sees none
  at::Tensor log_sums;  ///< [B,N,S]: log of the sum of the exponentials of the scores; -infinity if a query sees none
};

/// Computes attention over the given keys; `mask` says which of them a query sees, as in ops::attention. The result has
/// no gradient.
///
/// Shapes: as for ops::attention. mask.queries and mask.keys give the positions of the queries and keys.
/// Errors: the errors of ops::attention; ("attention"): mask.lengths is given.
/// Paths:  on the CPU one call of our kernel; bf16 and fp16 use the fp32 kernel. On accelerators each pair of a run of
///         queries and a run of keys is computed separately. LibTorch's flash attention computes it if it accepts the
///         pair (flash.h), else the reference with full score matrices. If documents hide nothing
///         between two runs, the pair is computed without documents.
/// Cost:   as for ops::attention of these queries and keys. It is negligible if the mask lets no pair through, e.g. if
///         all keys are after the queries, before the windows or of other documents. Accelerators also skip such pairs
///         of runs; they compare the bounds of the document ids in each run. tensor::FlopCount counts as for
///         ops::attention.
PartialAttention partial_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionMask& mask);

/// Returns `x`, detached. On the CPU it is widened to the dtype in which partial_attention() computes, so that a caller
/// of several parts widens its queries once. On accelerators the dtype does not change.
at::Tensor as_partial_operand(const at::Tensor& x);

/// Computes the same with full score matrices and ATen: the reference.
PartialAttention partial_attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const AttentionMask& mask);

/// Adds the result `part` over other keys to `sum`, in place: `sum` becomes the result over the keys of both. If `sum`
/// is undefined it becomes `part` and shares its tensors; if `part` is undefined nothing changes. No exponential
/// overflows, because sums are relative to the larger of the two.
void merge(PartialAttention& sum, const PartialAttention& part);

/// Gradients in the dtype of PartialAttention, so that gradients of several parts can be added up. They are undefined
/// if no query sees any of the keys.
struct AttentionGradients {
  at::Tensor q, k, v;
};

/// Computes the part of the gradients that flows through the given keys. `whole` is the merged result over all keys,
/// and `dout` is its gradient. The log_sums of all keys give the softmax weights. The row sums of dout * out give the
/// term common to all keys (delta; Dao, arXiv:2307.08691, algorithm 2).
AttentionGradients partial_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                              const at::Tensor& v, const AttentionMask& mask,
                                              const PartialAttention& whole);

/// Computes the same with full score matrices: the reference.
AttentionGradients partial_attention_backward_reference(const at::Tensor& dout, const at::Tensor& q,
                                                        const at::Tensor& k, const at::Tensor& v,
                                                        const AttentionMask& mask, const PartialAttention& whole);

}  // namespace colossal::ops
