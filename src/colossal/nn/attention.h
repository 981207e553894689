// Attention as a layer of the factory, between the projection to heads and the projection from them.
//
//   qkv = make.heads("attention.qkv", shape, {});
//   attention = make.attention("attention", shape, {.window = 4096});
//   out = make.from_heads("attention.out", shape, {});
//   ...
//   nn::Heads heads = qkv->forward(x, step);
//   ...                                // q and k normalised (Layers::head_norm)
//   nn::turn(heads, step, table);      // by rotary positions
//   x = x + out->forward(attention->forward(heads, step), step);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/nn/tokens.h"

namespace colossal::ops {
struct AttentionMask;
class RotaryTable;
}  // namespace colossal::ops

namespace colossal::nn {

struct AttentionShape;
struct Inside;
struct ForwardContext;

/// Output of a HeadProjection on one rank.
struct Heads {
  /// [B_local, S, N_local, D]; k and v have the local kv heads, and v AttentionShape::value_dim() features
  at::Tensor q, k, v;
  Tokens tokens;  ///< the tokens of the batch that q, k and v belong to
  /// Logical index of the first head of q. Heads with index AttentionShape::heads or more are padding (see HeadSplit).
  int64_t first_head = 0;
  /// Function of the result of attention [B, S, N_local, D], to [B, S, N_local value_dim]. With it v is undefined,
  /// because the values are the keys, and the cache must join them (AttentionCache::joins_values). Empty = none
  std::function<at::Tensor(const at::Tensor&)> finish{};
};

/// Splits [B, S, (N_local + 2 N_kv_local) D] into heads.
Heads split_heads(const at::Tensor& fused, int64_t heads_local, int64_t kv_heads_local, int64_t head_dim);

/// Splits q [B, T, N_local D] and kv [B, S, 2 N_local D] into heads. kv holds k and v side by side; undefined = no
/// keys.
Heads cross_heads_of(const at::Tensor& q, const at::Tensor& kv, int64_t head_dim);
/// Checks the projection `name` of two hidden states. Errors ("model"): fewer kv heads than heads.
void check_cross_heads(const std::string& name, const AttentionShape& shape);

/// How scores are computed and masked; see ops::AttentionMask, which also cites the sources.
struct AttentionOptions {
  bool causal = true;  ///< a token attends to no later token
  int64_t window = 0;  ///< positions that a token attends to, including itself (not causal: on either side); 0 = all
  bool alibi = false;  ///< ALiBi, with ops::alibi_slopes of the logical heads, whichever rank holds them
  double alibi_scale = 1;  ///< factor of these slopes (Falcon: 1 / sqrt(D))
  double soft_cap = 0;     ///< scores are capped smoothly to within +- soft_cap; 0 = off
  double scale = 0;        ///< factor of the scores; 0 = 1 / sqrt(D)
};

/// Returns the ALiBi slopes of this rank's query heads times alibi_scale, fp64 [N_local] on their device. `heads` is
/// the number of heads over all ranks. The slopes of padding heads are zero.
at::Tensor alibi_slopes_of(const Heads& here, int64_t heads, const AttentionOptions& options);

/// Rotates q and k of `heads` by the positions of their tokens (step.positions). A table that depends on the sequence
/// length is passed Sequences::reach of each sequence, or else the length of each token's document, including the parts
/// on other ranks, so that a text has the same frequencies in any row. Without documents, and on meta, it is passed the
/// longest sequence of the batch, including cached tokens; a sequence is a row, or one of nn::Sequences.
void turn(Heads& heads, const ForwardContext& step, const ops::RotaryTable& table);

/// Rotates q and k of `heads` by the positions of their tokens along several axes (ops::rotary()). `positions` int64
/// [S, axes] has those of all tokens of a row, which every row shares.
void turn(Heads& heads, const at::Tensor& positions, const std::vector<ops::RotaryTable>& axes);

/// Returns the mask of ops::attention for `options` and heads with these slopes (alibi_slopes_of(); undefined without
/// ALiBi). The caller adds what depends on the batch: documents, lengths, positions of queries and keys. It is the only
/// function that turns an option into a part of a mask.
ops::AttentionMask mask_of(const AttentionOptions& options, const at::Tensor& slopes);

/// The attention layer between the projection to heads and the projection from them.
class Attention {
 public:
  virtual ~Attention() = default;
  /// Returns softmax(scores) v of this rank's heads, [.., N_local * value_dim] for from_heads(). A token attends to
  /// tokens of its own sequence (nn::Sequences) and, within it, of its own document. With a cache (nn::Decoding) it
  /// also attends to the cached tokens of this layer and sequence, and its keys and values are appended.
  /// Errors ("parallel"): heads of a part of the sequence (Heads::tokens), if Layers::attention returned a layer for
  ///                      whole sequences.
  /// Errors ("model"): documents together with a cache.
  virtual Inside forward(const Heads& heads, const ForwardContext& step) = 0;
};

/// Returns the attention of a rank that has whole sequences; it does not communicate. A cache stores its keys under
/// number `layer`.
/// Errors of forward(), in addition to those of Attention: "parallel", a cache that holds only a part of the keys;
/// "model", a paged cache with attention that is not causal.
std::unique_ptr<Attention> whole_attention(int64_t layer, const AttentionShape& shape, const AttentionOptions& options);

/// Returns softmax(scores) v of queries [B_local, T, N_local, D] over a source of other tokens, whose keys and values
/// are [B_local, S, N_local, D], as features [B_local, T, N_local * D] for from_heads(). Scores have the factor
/// 1 / sqrt(D). `mask`: int64 [B, S] of the whole batch, 1 for the tokens that are seen and 0 for those that are not,
/// such as pads; undefined = all are seen. A row that sees no token gets zeros. It does not communicate.
Inside attention_to_source(const Heads& heads, const at::Tensor& mask);

}  // namespace colossal::nn
