// A block of ESMFold's trunk (Lin et al. 2023, doi:10.1126/science.ade2574): attention of the sequence with a bias of
// the pairs, then the triangle layers of AlphaFold on the pairs.
//
//   const models::EsmFoldBlock block(make, "trunk.blocks.0", {.sequence = 1024, .pair = 128});
//   models::EsmFoldTrunk state{.s = s, .z = z};          // s [B, N, 1024], z [B, N, N, 128]
//   state = block.forward(state, mask, step);            // mask [B, N], 0 for padding; or undefined
//
// Ranks may cut z (nn/axial_ranks.h): a rank has rows i of it. Each has all of s and computes the rows of its residues,
// which are gathered. A block sends, in elements over p ranks with sizes that divide, of s N c and Z of z:
// (p-1)/p 2 Z + (p-1) (N c + 2 heads N^2 + 2 Z). Backward sends as much.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/pair_layers.h"
#include "colossal/nn/shared_dropout.h"

namespace colossal::models {

/// Sizes of a block. The defaults are those of ESMFold.
struct EsmFoldSizes {
  int64_t sequence = 1024, pair = 128;           ///< features of s and of z; `pair` is even
  int64_t sequence_width = 32, pair_width = 32;  ///< features of a head; they divide the features
  double dropout = 0;                            ///< of s; pairs have twice as much
};

/// The two representations.
struct EsmFoldTrunk {
  at::Tensor s;  ///< [B, N, sequence]
  at::Tensor z;  ///< [B, N, N, pair], of the first N this rank's
};

/// A block. Parameters are those of transformers' EsmFoldTriangularSelfAttentionBlock. Their names differ in the layers
/// that AlphaFold has, too: `name`.mlp_seq and mlp_pair consist of layer_norm, linear_1 and linear_2 (there mlp.0,
/// mlp.1 and mlp.3).
class EsmFoldBlock {
 public:
  /// Errors ("model"): widths that do not divide the features; odd pair features; dropout outside of [0, 0.5).
  EsmFoldBlock(nn::Layers& make, const std::string& name, const EsmFoldSizes& sizes);
  /// Returns the new state. Without gradients s and z are overwritten, unless backward reads them
  /// again (copy_kept_inputs()).
  EsmFoldTrunk forward(EsmFoldTrunk state, const at::Tensor& mask, const nn::ForwardContext& step) const;

 private:
  at::Tensor attended(const EsmFoldTrunk& state, const at::Tensor& mask) const;
  at::Tensor pairs_of(const at::Tensor& s) const;

  std::shared_ptr<const nn::AxialRanks> ranks_;
  nn::GatedHeads heads_;
  std::unique_ptr<nn::Norm> norm_, to_pair_norm_, bias_norm_;
  std::unique_ptr<nn::Dense> to_pair_, to_pair_out_, bias_, qkv_, out_, gate_;
  nn::TriangleMultiplication triangle_out_, triangle_in_;
  nn::TriangleAttention start_, end_;
  nn::Transition sequence_mlp_, pair_mlp_;
  nn::SharedDropout attention_dropout_, mlp_dropout_, out_dropout_, in_dropout_, start_dropout_, end_dropout_;
};

}  // namespace colossal::models
