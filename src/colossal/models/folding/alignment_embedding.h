// The first layers of AlphaFold 2: from the features of a chain and its alignment, and what the pass before has made,
// to the representations m, z and e (Jumper et al. 2021, supplement, algorithms 3, 4 and 32).
//
//   const AlignmentEmbedding embedding({.alignment = 256, .pair = 128, .extra = 64}, make);
//   at::Tensor z = embedding.pairs(batch);                                               // [B, N, N, 128]
//   const at::Tensor m = embedding.rows(batch), e = embedding.extra_rows(batch);         // [B, S, N, 256], [B, E, N,
//   64]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// Features of the representations, and the largest offset of residues that has an embedding of its own.
struct AlignmentEmbeddingSizes {
  int64_t alignment = 256, pair = 128, extra = 64;
  int64_t farthest = 32;
};

/// The embeddings of AlphaFold 2. Parameters have the names of OpenFold: input_embedder.{linear_tf_z_i,linear_tf_z_j,
/// linear_tf_m,linear_msa_m,linear_relpos}, recycling_embedder.{linear,layer_norm_m,layer_norm_z} and
/// extra_msa_embedder.linear. Fields are those of folding_model.h; results are in the dtype of the model.
class AlignmentEmbedding {
 public:
  AlignmentEmbedding(const AlignmentEmbeddingSizes& sizes, nn::Layers& make);
  /// Returns z [B, N, N, pair], of ranks that cut it (nn/axial_ranks.h) this one's rows. Without gradients it is the
  /// field recycled_pair, overwritten, unless that field has another dtype than the model; features of pairs then exist
  /// for a few rows at a time.
  at::Tensor pairs(const tensor::Batch& batch) const;
  /// Returns the rows of the clustered alignment, [B, S, N, alignment], of ranks that cut it with `further` more rows
  /// this one's.
  at::Tensor rows(const tensor::Batch& batch, int64_t further) const;
  /// Returns the further rows [B, E, N, extra]. A batch without any gets one row, which extra_mask() hides.
  at::Tensor extra_rows(const tensor::Batch& batch) const;

 private:
  std::shared_ptr<const nn::AxialRanks> ranks_;
  at::ScalarType dtype_;
  int64_t farthest_;
  std::unique_ptr<nn::Dense> left_, right_, target_, row_, offset_, distance_, extra_;
  std::unique_ptr<nn::Norm> single_norm_, pair_norm_;
};

/// Returns the mask of AlignmentEmbedding::extra_rows(), [B, E, N].
at::Tensor extra_mask(const tensor::Batch& batch);

}  // namespace colossal::models
