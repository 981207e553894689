// Latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): queries, keys and values are projected from latents,
// which have fewer features than all heads together. Some features of each query and key are rotated by positions;
// those of the keys are one head, which all query heads share.
//
//   const nn::AttentionShape shape{.hidden = 64, .heads = 4, .kv_heads = 4, .head_dim = 24, .v_head_dim = 16};
//   qkv = make.latent_heads("attention", shape, {.q_rank = 24, .kv_rank = 32, .rope_dim = 8, .rotary = table});
//   attention = make.attention("attention", shape, {});
//   out = make.from_heads("attention.out", shape, {});
//   ...
//   x = x + out->forward(attention->forward(qkv->forward(x, step), step), step);
//
// Parameters, for heads of D features of q and k, R of them rotated, and V of v:
//   `name`.latent.weight [q_rank + kv_rank + R, hidden], without q_rank [heads D + kv_rank + R, hidden]: the first rows
//     give the latent of queries or the queries, the others the latent of keys and values and the rotated key;
//   `name`.q_norm.weight [q_rank] and `name`.kv_norm.weight [kv_rank];
//   `name`.q_up.weight [heads D, q_rank]; `name`.kv_up.weight [heads (D - R + V), kv_rank]: of each head k, then v.
// Without q_rank there is no q_norm and no q_up. The last R features of a head are rotated.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/nn/attention_shape.h"

namespace colossal::ops {
class RotaryTable;
}

namespace colossal::nn {

struct ForwardContext;
struct Heads;
class HeadProjection;
class Layers;

/// How heads are projected through latents.
struct LatentOptions {
  int64_t q_rank = 0;       ///< features of the latent of queries; 0 = queries are projected from hidden states
  int64_t kv_rank = 0;      ///< features of the latent of keys and values
  int64_t rope_dim = 0;     ///< features of a head that are rotated, its last ones
  double epsilon = 1e-6;    ///< of the RMSNorms of the latents
  double deviation = 0.02;  ///< standard deviation of the initial weights
  /// Table that rotates rope_dim features; null = none are rotated
  std::shared_ptr<const ops::RotaryTable> rotary{};
  /// True = the pairs of rotated features are neighbours, 0 and 1, 2 and 3; false = i and i + rope_dim / 2
  bool interleaved = false;
};

/// Checks the options of `name`. Errors ("model"): kv_heads that differ from heads; a rank below 1 (of q: below 0); a
/// rope_dim that is not even and between 2 and head_dim - 1, or that the table does not rotate.
void check_latents(const std::string& name, const AttentionShape& shape, const LatentOptions& options);

/// The rows of the three weights, and those that one of `parts` ranks holds. Heads are split as HeadSplit says. All
/// ranks hold the rows of latents.
struct LatentSplit {
  LatentSplit(const AttentionShape& shape, const LatentOptions& options, int64_t parts);
  int64_t down_size() const;  ///< rows of `name`.latent.weight

  std::vector<tensor::Segment> down;  ///< segments of `name`.latent.weight
  tensor::Segment q, kv_up;           ///< segments of the queries, and of `name`.kv_up.weight
  int64_t heads_local;
  int64_t q_rows;  ///< of the results of down, how many features of q or of its latent a rank has; they come first
};

/// The linear layers of latent heads in one factory.
class LatentLinears {
 public:
  explicit LatentLinears(LatentSplit split) : split(std::move(split)) {}
  virtual ~LatentLinears() = default;
  /// Returns [.., q_rows + kv_rank + rope_dim] of the tokens that a rank has inside, in the order of the sequence.
  virtual at::Tensor down(const at::Tensor& x, const ForwardContext& step) = 0;
  /// Returns the weight of kv_up, [heads_local (D - R + V), kv_rank], or an undefined tensor if kv_up computes with
  /// more than this weight, as adapters do.
  virtual at::Tensor kv_weight() const = 0;
  /// Return this rank's heads, [.., heads_local D] and [.., heads_local (D - R + V)], from whole latents.
  virtual at::Tensor q_up(const at::Tensor& latent) = 0;
  virtual at::Tensor kv_up(const at::Tensor& latent) = 0;
  /// Sets the tokens and the first head of `heads`.
  virtual void place(Heads& heads, const ForwardContext& step) const = 0;

  const LatentSplit split;
};

/// Returns the projection over `linears`, whose norms come from `make`. Its heads are already rotated.
///
/// With a cache that joins keys and values (AttentionCache::joins_values) the heads read latents: the keys are the
/// latent of keys and values and the rotated key, one head of kv_rank + R features, and they are the values, too.
/// kv_up is then multiplied into the queries and into the results (DeepSeek-V2, section 2.1.2). Scores and results are
/// equal up to rounding. A cache holds kv_rank + R elements of a token and layer.
std::unique_ptr<HeadProjection> make_latent_heads(Layers& make, const std::string& name, const AttentionShape& shape,
                                                  const LatentOptions& options, std::unique_ptr<LatentLinears> linears);

}  // namespace colossal::nn
