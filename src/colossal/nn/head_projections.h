// Projections from hidden states to the heads of an attention, and back.
//
//   const std::unique_ptr<nn::HeadProjection> qkv = layers.heads("attn.qkv", shape, {});
//   const std::unique_ptr<nn::OutputProjection> out = layers.from_heads("attn.out", shape, {});
//   y = out->forward({attention->forward(qkv->forward(x, step), step)}, step);
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/nn/attention.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"

namespace colossal::nn {

/// The fused q, k, v projection. A rank gets whole heads of q, k and v, with the tokens in the order of the sequence.
class HeadProjection {
 public:
  virtual ~HeadProjection() = default;
  virtual Heads forward(const at::Tensor& x /*[B, S, H]*/, const ForwardContext& step) = 0;
};

/// The projections of two hidden states: q from one, k and v from the other. Both may be the same state, for q with
/// other initial weights than k and v. A source without tokens costs nothing and gives no keys.
class CrossProjection {
 public:
  virtual ~CrossProjection() = default;
  virtual Heads forward(const at::Tensor& x /*[B, T, H]*/, const at::Tensor& source /*[B, S, H]*/,
                        const ForwardContext& step) = 0;
};

/// A table of values per head, in rows that many blocks look up, such as the learned relative positions added to
/// scores.
class HeadTable {
 public:
  virtual ~HeadTable() = default;
  virtual at::Tensor forward() = 0;  ///< [rows, N_local]: the columns of this rank's heads
};

/// Projection from the heads of an Attention back to outside: y [B, S, out] = x [.., N_local * D] Wt + bias.
class OutputProjection {
 public:
  virtual ~OutputProjection() = default;
  virtual at::Tensor forward(const Inside& x, const ForwardContext& step) = 0;
  /// Returns the projection of the heads `x` and of what an Expand made of the same tokens, y = [x | beside] Wt + bias,
  /// for a layer with LinearOptions::segments.
  virtual at::Tensor forward(const Inside& x, const Inside& beside, const ForwardContext& step) = 0;
};

}  // namespace colossal::nn
