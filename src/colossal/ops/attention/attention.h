// Scaled dot-product attention: multi-head and grouped-query, causal or not, with packed documents, sliding windows,
// ALiBi and capped scores.
//
//   ops::AttentionMask mask{.window = 1024};            // Mistral: a token sees itself and the 1023 before it
//   const at::Tensor out = ops::attention(q, k, v, mask);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace colossal::ops {

struct DocumentRuns;  // ops/attention/mask.h

/// Positions [first, first + size).
struct PositionRun {
  int64_t first, size;
};

/// Rules for which keys a query may see and how scores are computed. Row b of the batch has L = lengths[b] keys (or T),
/// at positions 0 to L - 1. Its S queries have the last S of these positions: query i is at L - S + i. If a rank holds
/// only a part of a sequence, `queries` gives the positions of its queries instead, and `keys` the positions of its
/// keys.
///
/// A score is s = scale q k, then soft_cap tanh(s / soft_cap), then s + alibi[head] (key position - query position).
struct AttentionMask {
  bool causal = true;  ///< a query sees no later position
  /// int64 [B, T] or undefined: a query sees only keys with its own document id. The tensor is on the host or on the
  /// queries' device. The host is better: accelerators then need neither a mask (AttentionPath::Flash) nor a
  /// synchronisation.
  at::Tensor documents;
  double scale = 0;  ///< factor of the scores; 0: 1 / sqrt(D)
  /// Window size; 0 = no window. If causal, a query sees `window` positions, its own is the last. Otherwise it sees
  /// keys at most `window` positions away on either side. Both are the definitions of transformers (Mistral,
  /// ModernBERT).
  int64_t window = 0;
  /// Linear biases: one slope per query head, fp64 [N], or undefined (Press et al. 2022, arXiv:2108.12409). They have
  /// no gradient.
  at::Tensor alibi;
  double soft_cap = 0;  ///< 0 = no cap; else scores are kept within +- soft_cap (Gemma 2, arXiv:2408.00118, section 2)
  /// Number of valid keys of each batch row, S to T. Keys after them have no effect, but must be finite. Empty = T in
  /// each row.
  std::vector<int64_t> lengths;
  /// Positions of the queries as consecutive runs, S positions in all, the same in every row. They cannot be combined
  /// with `lengths`. Empty = the last S positions of the keys. With `queries`, a query that sees no key yields zeros
  /// and has no gradient.
  std::vector<PositionRun> queries{};
  /// Positions of the keys as ascending runs, T in all; requires `queries`. Gaps between runs hold keys of other parts.
  /// Empty = 0 to T - 1.
  std::vector<PositionRun> keys{};
  at::Tensor query_documents{};  ///< int64 [B, S]: document id of each query; required with documents and `queries`
  /// The number of keys differs in nearly every call, as in decoding. Operators that prepare a plan per size are
  /// avoided.
  bool grows = false;
  /// document_runs() of `documents` for the queries' device, computed once for many layers. Null = accelerators compute
  /// them in each layer.
  std::shared_ptr<const DocumentRuns> runs{};
};

/// Returns the ALiBi slopes for `heads` heads, fp64 [heads]. If `heads` is a power of two, they are 2^(-8 i / heads)
/// for i = 1, 2, ... Otherwise they are the slopes for the next lower power p, followed by every other slope for 2 p
/// (as BLOOM does).
at::Tensor alibi_slopes(int64_t heads);

/// Computes softmax(scores) v per head. Query head n reads key head n / (N / Nkv).
///
/// Shapes:   q [B,N,S,D], k and v [B,Nkv,T,D], N % Nkv == 0 -> [B,N,S,D]. T >= S if the mask uses positions (all but
///           scale and cap do) and does not give `queries`. Any strides are accepted. Views of [B,S,N,D] storage are
///           read in place; the result then has [B,S,N,D] storage too (its transpose(1, 2) is contiguous).
/// Gradient: of q, k and v.
/// Errors:   throws if shapes do not fit together.
/// Cost:     on the CPU the full score matrix never exists, and blocks of keys that no query of a block sees are
///           skipped. A causal mask halves the work. A window makes it O(S window), documents that are runs of a row
///           make it O(sum of their squared lengths).
/// Memory:   on the CPU a thread keeps D + 2 elements per query (D + 1 in backward). It does so for as many heads of a
///           group as have 2048 queries together, at least for one. If that is not the whole group, backward also keeps
///           2 D elements per key. For accelerators see attention_path().
/// FLOPs:    tensor::FlopCount counts 4 D operations for each query head and each pair of a query and a key that it may
///           see, and twice that in backward. Document ids on the host restrict the pairs to the query's own document.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);

/// Computes the same attention by whole score matrices and ATen autograd: the reference.
at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionMask& mask);

/// Implementation that attention() runs.
enum class AttentionPath {
  Kernel,   ///< our kernel, on the CPU; for meta tensors it only computes sizes
  Library,  ///< LibTorch's fused attention without a mask or with its own causal one
  Flash,    ///< LibTorch's flash attention, called by name, on accelerators: ops/attention/flash.h
  Masked,   ///< LibTorch's fused attention with a mask [.., S, T] of visible keys, or of biases in q's dtype
  /// Whole score matrices: for capped scores, which LibTorch does not support, and for queries that may see no key
  Reference,
};

/// Returns the implementation for these tensors. The choice depends only on sizes, dtype, device, mask and grad mode,
/// so tests can check the choice for a GPU without one. `has_kernel` says if our kernel accepts the tensors (CPU; fp64,
/// fp32, bf16). On an accelerator, attention() first removes documents that hide nothing (one document per row).
AttentionPath attention_path(bool has_kernel, const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// Runs attention() with the given implementation: for tests and measurements. AttentionPath::Kernel requires tensors
/// that our kernel accepts.
at::Tensor attention_on(AttentionPath path, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionMask& mask);

}  // namespace colossal::ops
