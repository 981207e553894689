// Attention in the order of sums of generation, with gradients: what ops::paged_attention computes of keys in a cache,
// of the keys of a batch.
//
//   ops::AttentionMask mask{.documents = documents};             // packed rows: each document is a sequence
//   const at::Tensor out = ops::ordered_attention(q, k, v, mask);
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention/attention.h"

namespace colossal::ops {

/// Computes causal attention of whole rows. The result of a token has the bits that paged_attention() gives it in a
/// sequence of its own, whatever the other tokens are, and for any number of tokens that are computed together.
///
/// Shapes:   q [B,N,S,D], k and v [B,Nkv,S,D], as for attention(). Each document of a row is a sequence, and tokens of
///           a document must be neighbours.
/// Gradient: that of attention(), computed by its kernel from the values of the batch.
/// Devices:  tensors on the CPU with has_paged_attention(). Others, and meta, are given to attention().
/// Memory:   in addition to attention() one copy of k and v during the call.
/// Cost:     as attention(); forward reads the keys in parts of kPagedPart.
/// Errors ("attention"): a mask that is not causal, or with lengths, positions of queries or documents of another
///                       device; a document whose tokens are not neighbours.
at::Tensor ordered_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);

}  // namespace colossal::ops
