// Scaled dot-product attention of multi-head, grouped-query and packed-document kind.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

struct AttentionMask {
  bool causal = true;    ///< a query sees no later position; queries are the last S of the T positions
  at::Tensor documents;  ///< int64 [B, T] or undefined: a query sees only keys of its own document id
  double scale = 0;      ///< factor of the scores; 0: 1 / sqrt(D)
};

/// softmax(q kt * scale + mask) v per head; query head n reads key head n / (N / Nkv).
///
/// Shapes:   q [B,N,S,D], k and v [B,Nkv,T,D], N % Nkv == 0, T >= S if causal -> [B,N,S,D]. Any strides: views of
///           [B,S,N,D] storage are read in place, and then the result has [B,S,N,D] storage too (its transpose(1, 2) is
///           contiguous).
/// Gradient: of q, k and v.
/// Errors:   throws if shapes do not fit together.
/// Cost:     scores never exist as a whole; a causal mask halves the work. Announced (tensor::FlopCount): 4 D
///           operations for each head, query and key that it may see, and twice that in backward; documents are not
///           looked at.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);

/// The same by whole score matrices and ATen autograd: the reference.
at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionMask& mask);

}  // namespace colossal::ops
