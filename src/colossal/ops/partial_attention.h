// Attention of queries over a part of their keys, for sequences of which a rank has a part: partial results of all
// parts of the keys, merged in any order, are those of ops::attention over all of them.
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

#include "colossal/ops/attention.h"

namespace colossal::ops {

/// What queries have of the keys seen so far, in fp64 for fp64, else in fp32: narrower numbers are widened first. Both
/// undefined: no query sees any of the keys.
struct PartialAttention {
  at::Tensor out;       ///< [B,N,S,D]: softmax over those keys times their values; zeros where a query sees none
  at::Tensor log_sums;  ///< [B,N,S]: logarithm of the sum of the exponentials of the scores; minus infinity there
};

/// Computes attention over the keys given, which `mask` makes visible as in ops::attention. It has no gradient of its
/// own.
///
/// Shapes: those of ops::attention; mask.queries and mask.keys give the positions of the queries and keys of a part.
/// Errors: those of ops::attention; ("attention"): mask.lengths.
/// Paths:  on the CPU one call of our kernel; bf16 and fp16 by the kernel of fp32. On accelerators each run of queries
///         with each run of keys by itself: by LibTorch's flash attention if it accepts them
///         (partial_flash_attention.h), else by the reference, with whole scores. Runs from which documents hide
///         nothing are computed without documents.
/// Cost:   that of ops::attention of those queries and keys. It is negligible if the mask lets no pair through: keys
///         after all queries or before all windows, or of other documents. On accelerators such runs are left out too,
///         by the bounds of the ids in each. Announced (tensor::FlopCount) as by ops::attention.
PartialAttention partial_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionMask& mask);

/// `x` in the dtype that partial_attention() computes with on its device, so that whoever asks for several parts widens
/// queries once.
at::Tensor as_partial_operand(const at::Tensor& x);

/// Computes the same by whole score matrices and ATen: the reference.
PartialAttention partial_attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const AttentionMask& mask);

/// `sum` becomes what its queries have of its own keys and of those of `part`, which are others. An undefined `sum`
/// becomes `part`, an undefined `part` changes nothing. No exponential overflows: sums are taken relative to the larger
/// of the two. Changes the tensors of `sum` in place.
void merge(PartialAttention& sum, const PartialAttention& part);

/// In the dtype of PartialAttention, so that those of several parts can be added up. Undefined where no query sees any
/// of the keys.
struct AttentionGradients {
  at::Tensor q, k, v;
};

/// The part of the gradients that comes through the keys given, where `dout` is the gradient of what all keys together
/// make, `whole`: log_sums of all keys tell the weights, and rows of dout * out what all of them have in common
/// (delta; Dao, arXiv:2307.08691, algorithm 2).
AttentionGradients partial_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                              const at::Tensor& v, const AttentionMask& mask,
                                              const PartialAttention& whole);

/// Computes the same by whole score matrices: the reference.
AttentionGradients partial_attention_backward_reference(const at::Tensor& dout, const at::Tensor& q,
                                                        const at::Tensor& k, const at::Tensor& v,
                                                        const AttentionMask& mask, const PartialAttention& whole);

}  // namespace colossal::ops
