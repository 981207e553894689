// Forward and backward of attention by the CPU kernels (attention_kernel.h), without autograd. attention() and
// partial_attention() are built on these functions.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention/attention.h"
#include "colossal/ops/attention/mask.h"

namespace colossal::ops {

/// Input of the kernels: heads q [B,N,S,D], k and v [B,Nkv,T,D] with any strides, and the keys that each query may see.
struct BlockedHeads {
  at::Tensor q, k, v;
  KeyRanges ranges;
  at::Tensor alibi;  ///< fp64 [N] of the host, or undefined
  double scale, soft_cap;
};

/// Returns the kernels' input for attention(q, k, v, mask). The caller must have checked the arguments. The ranges are
/// empty for meta tensors.
BlockedHeads blocked_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);

struct BlockedResult {
  at::Tensor out;       ///< [B,N,S,D] over [B,S,N,D] storage, in q's dtype; zeros if a query sees no key
  at::Tensor log_sums;  ///< [B,N,S] in the computing type; infinity if a query sees no key
};

/// Computes attention for tensors with has_kernel(), all of one dtype. It only returns tensors of the right sizes for
/// meta tensors.
BlockedResult blocked_attention(const BlockedHeads& heads);

/// Gradients over [B,S,N,D] storage, in the dtype of the heads.
struct BlockedGradients {
  at::Tensor q, k, v;
};

/// Computes gradients of the heads from `dout` [B,N,S,D], the gradient of a result. The result may cover more keys than
/// `heads` has. The gradients are then the part that flows through the given keys.
BlockedGradients blocked_attention_backward(const BlockedHeads& heads, const BlockedResult& result,
                                            const at::Tensor& dout);

}  // namespace colossal::ops
