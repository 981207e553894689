// A block of the Evoformer and of the stack of extra alignment rows (Jumper et al. 2021, supplement, algorithms 6 and
// 18). Parameters have the names of OpenFold behind `name`.
//
//   const models::EvoformerBlock block(make, "blocks.0", {.alignment = 256, .pair = 128});
//   models::Evoformer state{.m = m, .z = z};             // m [B, S, N, 256], z [B, N, N, 128]
//   state = block.forward(state, {.alignment = mask}, step);
//
// Ranks may cut both (nn/axial_ranks.h). Between blocks a rank has rows of m and rows i of z; masks are whole. A block
// sends, in elements over p ranks with sizes that divide, M = elements of m and Z of z, Se rows and N residues:
// (p-1)/p (2 M + 2 Z) + (p-1) ((R + 2 E) N^2 + outer S N + 2 Z'), with R and E heads of `rows` and `edges`, Z' = N^2
// triangle features, and 2 M more if the outer product is first. Backward sends as much.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/alignment_layers.h"
#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/pair_layers.h"
#include "colossal/nn/shared_dropout.h"

namespace colossal::models {

/// Sizes of a block. The defaults are those of AlphaFold 2.
struct EvoformerSizes {
  int64_t alignment = 256, pair = 128;            ///< features of m and of z
  nn::GatedHeads rows{.heads = 8, .width = 32};   ///< heads of the attention of m
  nn::GatedHeads edges{.heads = 4, .width = 32};  ///< heads of the attention of z
  int64_t outer = 32, triangle = 128;             ///< features of the outer product and of triangle multiplication
  int64_t transition = 4;                         ///< factor of the features inside a transition
  double alignment_dropout = 0.15, pair_dropout = 0.25;
  bool outer_first = false;  ///< the outer product precedes the attention of m (multimer v2 and v3)
  bool fused = false;        ///< one projection of both edges (multimer v3)
  bool global = false;       ///< global attention of columns, for extra rows
};

/// The two representations.
struct Evoformer {
  at::Tensor m;  ///< [B, S, N, alignment], of S this rank's
  at::Tensor z;  ///< [B, N, N, pair], of the first N this rank's
};

/// Elements that take part, in any dtype; undefined = all. Whole on every rank.
struct EvoformerMasks {
  at::Tensor alignment{};  ///< [B, S, N]
  at::Tensor pair{};       ///< [B, N, N]
  int64_t rows = 0;        ///< S, without a mask of an alignment that ranks cut; 0 = that of m

  /// Returns S.
  int64_t rows_of(const at::Tensor& m) const {
    return rows > 0 ? rows : alignment.defined() ? alignment.size(1) : m.size(1);
  }
};

/// The layers of z alone: triangle multiplications, triangle attentions, transition.
class PairStack {
 public:
  /// Errors ("model"): dropout outside of [0, 1).
  PairStack(nn::Layers& make, const std::string& name, const EvoformerSizes& sizes);
  /// Returns the new z. Without gradients z is overwritten, so that triangle multiplication fits into twice its memory.
  at::Tensor forward(at::Tensor z, const at::Tensor& mask, const nn::ForwardContext& step) const;

 private:
  std::shared_ptr<const nn::AxialRanks> ranks_;
  nn::TriangleMultiplication out_, in_;
  nn::TriangleAttention start_, end_;
  nn::Transition transition_;
  nn::SharedDropout out_dropout_, in_dropout_, start_dropout_, end_dropout_;
};

/// A block. Transitions ignore the masks, as in AlphaFold: what they write to padding reaches no other element.
class EvoformerBlock {
 public:
  /// Errors ("model"): dropout outside of [0, 1).
  EvoformerBlock(nn::Layers& make, const std::string& name, const EvoformerSizes& sizes);
  /// Returns the new state. Without gradients m and z are overwritten, unless backward reads them
  /// again (copy_kept_inputs()).
  Evoformer forward(Evoformer state, const EvoformerMasks& masks, const nn::ForwardContext& step) const;

 private:
  at::Tensor outer(const at::Tensor& m_of_columns, const EvoformerMasks& masks, const at::Tensor& z) const;

  std::shared_ptr<const nn::AxialRanks> ranks_;
  bool outer_first_;
  nn::RowAttention row_;
  nn::SharedDropout row_dropout_;
  std::unique_ptr<nn::ColumnAttention> column_;  // null = global_
  std::unique_ptr<nn::GlobalColumnAttention> global_;
  nn::Transition transition_;
  nn::OuterProduct outer_;
  PairStack pair_;
};

}  // namespace colossal::models
