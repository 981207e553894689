// Attention whose scores have an additive bias that many rows share: the pair bias of AlphaFold (Jumper et al. 2021,
// supplement, algorithms 7, 13 and 14) and the relative positions of T5. No scores are kept for backward, and yet the
// bias has its gradient, summed over the rows.
//
//   // m [B, S, N, heads * D] attends along N; the bias of a pair [B, heads, N, N] serves all S rows.
//   const at::Tensor q = to_q.view({b, s, n, heads, d}).permute({0, 1, 3, 2, 4});      // k and v likewise
//   const at::Tensor out = ops::biased_attention(q, k, v, {.bias = bias, .keys = mask});
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// What is added to scores, and the keys that queries see. A query that sees no key gives zeros and has no gradient.
struct AttentionBias {
  at::Tensor bias{};  ///< [G, N, S, T]: the bias of all rows of a group, in any dtype; undefined = none
  at::Tensor keys{};  ///< bool [G, R, T]: true for the keys that take part; undefined = all
  /// A query sees no later key; the queries are the last of the keys' tokens, so T >= S
  bool causal = false;
  /// Document ids, int64 [G, R, S] and [G, R, T]: a query sees the keys of its own document. Both undefined = all
  at::Tensor query_documents{}, key_documents{};
  double scale = 0;  ///< factor of q k, before the bias is added; 0 = 1 / sqrt(D)
};

/// Computes softmax(scale q k^T + bias) v.
///
/// Shapes:   q [G,R,N,S,D]: G groups of R rows of N heads; k and v [G,R,N,T,D] -> [G,R,N,S,D]. Any strides are
///           accepted. On the CPU the result has the order of q's strides, so transposed views cost no copy.
/// Gradient: of q, k, v and the bias. The gradient of the bias is the sum over the R rows.
/// Numbers:  scores, softmax and sums are in fp32 for fp32 and narrower, in fp64 for fp64.
/// Errors ("attention"): shapes that do not fit together; causal with fewer keys than queries.
/// Memory:   backward keeps q, k, v, the bias, the result and a number per query. On the CPU the bias is copied if it
///           is not dense or not in the computing type; backward has a sum of the bias for each thread, of the heads
///           that the thread has. Elsewhere scores exist for a few rows at a time.
/// FLOPs:    4 D operations for each query and each key that the causal rule lets it see, and twice that in backward.
at::Tensor biased_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionBias& rules);

/// Computes the same by whole score matrices and ATen's autograd: the reference.
at::Tensor biased_attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const AttentionBias& rules);

}  // namespace colossal::ops
