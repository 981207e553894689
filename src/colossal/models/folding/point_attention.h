// Invariant point attention (Jumper et al. 2021, supplement, algorithm 22): attention of residues whose scores also
// depend on distances between points that each residue places in its frame, and on the pair representation.
//
//   const PointAttention attention("structure.points", {.single = 384, .pair = 128}, make);
//   s = s + attention.forward(s, {.values = z}, frames, mask);          // s [B, N, 384], z [B, N, N, 128]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/geometry/rigid.h"

namespace colossal::models {

/// Sizes of invariant point attention.
struct PointAttentionSizes {
  int64_t single = 384, pair = 128;            ///< features of a residue and of a pair
  int64_t heads = 12, head_dim = 16;           ///< scalars of a head's query, key and value
  int64_t query_points = 4, value_points = 8;  ///< points of a head
  bool operator==(const PointAttentionSizes&) const = default;
};

/// The pair representation that a layer reads.
struct PairValues {
  at::Tensor values;  ///< [B, N, N, pair], of the first N this rank's
  /// Norm that is still to be applied to the values; null = none. Without gradients it is applied row by row, so that
  /// no normed copy exists
  nn::Norm* norm = nullptr;
};

/// Attention over all residues with scores sqrt(1/3) (q k / sqrt(head_dim) + b_ij - gamma w / 2 sum |T_i q - T_j k|^2),
/// w = sqrt(2 / (9 query_points)), gamma = softplus(head_weights).
///
/// Parameters: `name`.{q,kv,q_points,kv_points,bias,out}, each with weight and bias, and `name`.head_weights [heads].
///   Rows of kv: head, then keys, then values. Rows of the points: all x, all y, all z; within each head, then point;
///   of kv_points key points, then value points. Inputs of out: values | x | y | z | lengths of value points | pairs.
/// Ranks:  a rank computes the rows of z that it has (nn/axial_ranks.h) and has all of s and of the frames. It sends
///   AxialRanks::gathered() of the update, N single.
/// Memory: with gradients [B, heads, N, N] for scores and weights; without, all by rows of queries, so that a slice of
///   the normed pairs exists at a time. No tensor has both pairs and points.
class PointAttention {
 public:
  PointAttention(const std::string& name, const PointAttentionSizes& sizes, nn::Layers& make);
  /// Returns the update of s [B, N, single]. `frames` [B, N] are in the dtype in which geometry is computed, at least
  /// fp32; mask [B, N]: 0 = no residue attends to this one.
  at::Tensor forward(const at::Tensor& s, const PairValues& pairs, const ops::Rigid& frames,
                     const at::Tensor& mask) const;

 private:
  struct Sides;
  Sides project(const at::Tensor& s, const ops::Rigid& frames) const;
  at::Tensor attended(const Sides& all, int64_t first, const at::Tensor& z, const ops::Rigid& frames,
                      const at::Tensor& mask) const;

  PointAttentionSizes sizes_;
  std::shared_ptr<const nn::AxialRanks> ranks_;
  std::unique_ptr<nn::Dense> q_, kv_, q_points_, kv_points_, bias_, out_;
  std::unique_ptr<nn::Vector> head_weights_;
};

}  // namespace colossal::models
