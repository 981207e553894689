// Attention by the kernels of the CPU (attention_kernel.h), forward and backward apart from autograd: what attention()
// and partial_attention() are made of.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention.h"
#include "colossal/ops/attention_mask.h"

namespace colossal::ops {

/// What the kernels take: heads q [B,N,S,D], k and v [B,Nkv,T,D] of any strides, and what each query may see.
struct BlockedHeads {
  at::Tensor q, k, v;
  KeyRanges ranges;
  at::Tensor alibi;  ///< fp64 [N] of the host, or undefined
  double scale, soft_cap;
};

/// Returns the heads of attention(q, k, v, mask), which the caller has checked. Heads of meta tensors have no ranges.
BlockedHeads blocked_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);

struct BlockedResult {
  at::Tensor out;       ///< [B,N,S,D] over [B,S,N,D] storage, in q's dtype; zeros where a query sees nothing
  at::Tensor log_sums;  ///< [B,N,S] in the computing type; infinity where a query sees nothing
};

/// Computes attention of tensors with has_kernel(), all of one dtype; for meta tensors only the sizes of the result.
BlockedResult blocked_attention(const BlockedHeads& heads);

/// Gradients over [B,S,N,D] storage, in the dtype of the heads.
struct BlockedGradients {
  at::Tensor q, k, v;
};

/// Computes gradients of the heads from `dout` [B,N,S,D], the gradient of a result. The result may be of more keys than
/// `heads` has: then these are the part of the gradients that comes through the keys given.
BlockedGradients blocked_attention_backward(const BlockedHeads& heads, const BlockedResult& result,
                                            const at::Tensor& dout);

}  // namespace colossal::ops
