// Attention as a layer that a model asks its factory for, between the projection to heads and the one from them.
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
#include <memory>
#include <string>

#include "colossal/nn/tokens.h"

namespace colossal::ops {
struct AttentionMask;
class RotaryTable;
}  // namespace colossal::ops

namespace colossal::nn {

struct AttentionShape;
struct Inside;
struct Step;

/// What a HeadProjection gives a rank.
struct Heads {
  at::Tensor q, k, v;  ///< [B_local, S, N_local, D], k and v with the local kv heads
  Tokens tokens;       ///< of the batch, which these are
  /// Logical index of the first head of q. Heads from AttentionShape::heads on are padding (see HeadSplit).
  int64_t first_head = 0;
};

/// Splits [B, S, (N_local + 2 N_kv_local) D] into heads.
Heads split_heads(const at::Tensor& fused, int64_t heads_local, int64_t kv_heads_local, int64_t head_dim);

/// Splits q [B, T, N_local D] and k and v side by side [B, S, 2 N_local D], undefined for no keys, into heads.
Heads cross_heads_of(const at::Tensor& q, const at::Tensor& kv, int64_t head_dim);
/// Errors ("model"): fewer kv heads than heads in the projection `name` of two hidden states.
void check_cross_heads(const std::string& name, const AttentionShape& shape);

/// How scores are made and masked; see ops::AttentionMask, which has the sources.
struct AttentionOptions {
  bool causal = true;      ///< a token sees no later one
  int64_t window = 0;      ///< positions that a token sees, itself included (not causal: on either side); 0: all
  bool alibi = false;      ///< ops::alibi_slopes of the logical heads, whatever rank has them
  double alibi_scale = 1;  ///< factor of these slopes (Falcon: 1 / sqrt(D))
  double soft_cap = 0;     ///< scores stay within +- soft_cap; 0: none
  double scale = 0;        ///< factor of the scores; 0: 1 / sqrt(D)
};

/// The slopes of ALiBi of the query heads here, fp64 [N_local] on their device, where there are `heads` in all, times
/// alibi_scale; those of padding are zero.
at::Tensor alibi_slopes_of(const Heads& here, int64_t heads, const AttentionOptions& options);

/// Turns q and k of `heads` by the positions of their tokens, step.positions. A table that depends on the length of the
/// sequence is told the longest of the batch, the tokens of step.cache included, whatever part of it is here: a row's
/// tokens or those of the longest of step.sequences (documents do not count).
void turn(Heads& heads, const Step& step, const ops::RotaryTable& table);

/// How ops::attention makes scores by `options`, of heads with these slopes (alibi_slopes_of(); undefined without
/// ALiBi). Whoever calls it adds what is known of a batch: documents, lengths, where queries and keys stand. The one
/// place where an option becomes a part of a mask.
ops::AttentionMask mask_of(const AttentionOptions& options, const at::Tensor& slopes);

class Attention {
 public:
  virtual ~Attention() = default;
  /// softmax(scores) v of this rank's heads, features [.., N_local * D] for from_heads(). A token attends to those of
  /// its own sequence (step.sequences) and, there, of its own document; where step.cache is, to what that holds of this
  /// layer and sequence too, and its keys and values are appended.
  /// Errors ("parallel"): heads of a part of the sequence (Heads::tokens), by what Layers::attention gives; "model":
  ///                      documents beside a cache.
  virtual Inside forward(const Heads& heads, const Step& step) = 0;
};

/// Attention of sequences that a rank has whole, with no communication: layer number `layer` to a cache.
/// Errors of forward(), beside those of Attention ("parallel"): a cache that holds a part of the keys.
std::unique_ptr<Attention> whole_attention(int64_t layer, const AttentionShape& shape, const AttentionOptions& options);

}  // namespace colossal::nn
