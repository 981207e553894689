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

struct DocumentRuns;  // ops/document_runs.h

/// Positions [first, first + size).
struct PositionRun {
  int64_t first, size;
};

/// Which keys a query looks at, and how scores are made. Row b of a batch has L = lengths[b] keys (or T), at the
/// positions from 0 on, and its S queries stand at the last S of these: query i at L - S + i. Or they stand where
/// `queries` says, and keys where `keys` says: those of a part of a sequence, whose keys are another part of it or all.
///
/// A score is s = scale q k, then soft_cap tanh(s / soft_cap), then s + alibi[head] (key position - query position).
struct AttentionMask {
  bool causal = true;  ///< a query sees no later position
  /// int64 [B, T] or undefined: a query sees only keys of its own document id. Of the host or of the queries' device;
  /// best of the host, where accelerators too get by without a mask (AttentionPath::Flash) or a wait
  at::Tensor documents;
  double scale = 0;  ///< factor of the scores; 0: 1 / sqrt(D)
  /// 0: none. Causal: a query sees `window` positions, its own the last of them. Else it sees those at most `window`
  /// away on either side (both as transformers defines them: Mistral, ModernBERT).
  int64_t window = 0;
  /// Linear biases: a slope for each query head, fp64 [N], or undefined (Press et al. 2022, arXiv:2108.12409). They
  /// have no gradient.
  at::Tensor alibi;
  double soft_cap = 0;  ///< 0: none. Scores stay within +- soft_cap (Gemma 2, arXiv:2408.00118, section 2)
  /// Keys of each row of the batch, S to T; those behind count for nothing, but must be finite. Empty: T
  std::vector<int64_t> lengths;
  /// Where the queries stand, one run behind another, S in all and the same in every row; not beside lengths. Empty: at
  /// the last of the keys' positions. A query that sees no key then gives zeros, and has no gradient.
  std::vector<PositionRun> queries{};
  /// Beside queries: where the keys stand, T in all, in runs that ascend, with keys of others between them. Empty: from
  /// 0 on
  std::vector<PositionRun> keys{};
  at::Tensor query_documents{};  ///< int64 [B, S]: the document of each query, where there are documents and `queries`
  /// The number of keys is another in nearly every call, as in decoding: what plans once for each size is avoided
  bool grows = false;
  /// document_runs() of `documents` for the queries' device, found out once for many layers; null: accelerators look at
  /// documents in each
  std::shared_ptr<const DocumentRuns> runs{};
};

/// The slopes of ALiBi for `heads` heads, fp64 [heads]: 2^(-8 i / heads) for i = 1, 2, ... where `heads` is a power of
/// two; else those of the next lower power p, and behind them every other one of 2 p (as BLOOM has them).
at::Tensor alibi_slopes(int64_t heads);

/// softmax(scores) v per head; query head n reads key head n / (N / Nkv).
///
/// Shapes:   q [B,N,S,D], k and v [B,Nkv,T,D], N % Nkv == 0, T >= S if the mask speaks of positions (all but scale and
///           cap do) and does not say those of queries -> [B,N,S,D]. Any strides: views of [B,S,N,D] storage are read
///           in place, and then the result has [B,S,N,D] storage too (its transpose(1, 2) is contiguous).
/// Gradient: of q, k and v.
/// Errors:   throws if shapes do not fit together.
/// Cost:     on the CPU scores never exist as a whole, and blocks of keys that no query of a block sees are skipped: a
///           causal mask halves the work, a window makes it O(S window), documents that are runs of a row O(sum of
///           their squares). A thread keeps D + 2 numbers, in backward D + 1, of each query of as many heads of a group
///           as have 2048 queries together, or of one; and, where that is not the whole group, in backward 2 D of each
///           key. Elsewhere see attention_path(). Announced (tensor::FlopCount): 4 D operations for each query head,
///           query and key that it may see, of its own document where the host knows documents, and twice that in
///           backward.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);

/// Computes the same attention by whole score matrices and ATen autograd: the reference.
at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionMask& mask);

/// What attention() calls.
enum class AttentionPath {
  Kernel,     ///< ours, on the CPU; on meta it gives tensors of the right sizes
  Library,    ///< LibTorch's fused attention without a mask or with its own causal one
  Flash,      ///< LibTorch's flash attention by name, on accelerators: ops/flash_attention.h
  Masked,     ///< LibTorch's, with a mask [.., S, T] of what is allowed, or of biases in q's dtype
  Reference,  ///< for capped scores, which LibTorch's does not know, and for queries that may see nothing
};

/// A function of sizes, dtype, device, mask and grad mode alone, so that the choice for a GPU can be seen without one:
/// `has_kernel` is true where our kernel takes the tensors (CPU; fp64, fp32, bf16). attention() has dropped documents
/// that hide nothing before, one a row, where tensors are on an accelerator.
AttentionPath attention_path(bool has_kernel, const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// attention() on that path: for tests and measurements. Kernel only where it takes the tensors.
at::Tensor attention_on(AttentionPath path, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionMask& mask);

}  // namespace colossal::ops
