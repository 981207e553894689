// The layers of AlphaFold 2 that read templates, structures of similar chains (Jumper et al. 2021, supplement,
// algorithms 2, 16 and 17). Fields are those of folding_model.h.
//
//   const TemplateEmbedding embedding({.alignment = 256, .features = 64}, make);
//   at::Tensor t = embedding.pairs(batch);                                    // [B, T, N, N, 64]
//   const at::Tensor rows = embedding.rows(batch);                            // [B, T, N, 256], rows of m
//   t = block.forward(t, mask, step);                                         // mask [B, N, N]
//   z = last.joined(z, t, batch.at("template_mask"));                         // z [B, N, N, 128]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/pair_layers.h"
#include "colossal/nn/shared_dropout.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// Sizes of the layers of templates. The defaults are those of AlphaFold 2.
struct TemplateSizes {
  int64_t alignment = 256, pair = 128;             ///< features of m and of z
  int64_t features = 64;                           ///< of a pair of residues of a template
  int64_t templates = 4;                           ///< most templates
  nn::GatedHeads edges{.heads = 4, .width = 16};   ///< heads of triangle attention
  nn::GatedHeads points{.heads = 4, .width = 16};  ///< heads of the attention of z to templates
  int64_t triangle = 64;                           ///< features of triangle multiplication
  int64_t transition = 2;                          ///< factor of the features inside a transition
  double dropout = 0.25;
};

/// The embeddings of templates. Parameters have the names of OpenFold: template_embedder.template_pair_embedder.linear
/// and template_embedder.template_single_embedder.{linear_1,linear_2}.
class TemplateEmbedding {
 public:
  TemplateEmbedding(const TemplateSizes& sizes, nn::Layers& make);
  /// Returns the pairs of all templates, [B, T, N, N, features], of ranks that cut them (nn/axial_ranks.h) this one's
  /// rows, from 88 features of a pair: types, distances of CB and masks. Pairs of residues without a backbone have
  /// features of zeros.
  at::Tensor pairs(const tensor::Batch& batch) const;
  /// Returns rows of m, [B, T, N, alignment], from 57 features of a residue: its type and torsion angles.
  at::Tensor rows(const tensor::Batch& batch) const;

 private:
  std::shared_ptr<const nn::AxialRanks> ranks_;
  at::ScalarType dtype_;
  std::unique_ptr<nn::Dense> pair_, angle_1_, angle_2_;
};

/// Returns the mask [B, T, N] of TemplateEmbedding::rows(): residues with all of N, CA, C and O.
at::Tensor template_rows_mask(const tensor::Batch& batch);

/// A block of the template pair stack. Templates pass through it one after the other.
class TemplateBlock {
 public:
  /// Errors ("model"): dropout outside of [0, 1).
  TemplateBlock(nn::Layers& make, const std::string& name, const TemplateSizes& sizes);
  /// Returns the new pairs [B, T, N, N, features]; mask [B, N, N] of residues. Without gradients they are overwritten,
  /// unless backward reads them again (copy_kept_inputs()).
  at::Tensor forward(at::Tensor pairs, const at::Tensor& mask, const nn::ForwardContext& step) const;

 private:
  /// Dropout of one template: templates have masks of their own, whatever ranks their rows are on.
  struct Dropouts {
    nn::SharedDropout start, end, out, in;
  };
  at::Tensor of_one(at::Tensor pairs, const at::Tensor& mask, const Dropouts& dropout,
                    const nn::ForwardContext& step) const;

  std::shared_ptr<const nn::AxialRanks> ranks_;
  nn::TriangleAttention start_, end_;
  nn::TriangleMultiplication out_, in_;
  nn::Transition transition_;
  std::vector<Dropouts> dropouts_;
};

/// The norm of templates after their last block, and the attention of z to them: each pair of z attends to the same
/// pair of all templates. Parameters: `name`.layer_norm, `name`.mha.linear_{q,k,v}.weight, `name`.mha.linear_o.
class TemplateAttention {
 public:
  TemplateAttention(nn::Layers& make, const std::string& name, const TemplateSizes& sizes);
  /// Returns z [B, N, N, pair] with what pairs [B, T, N, N, features] add to it. mask [B, T]: 0 = no template; a row
  /// without templates gets nothing. Without gradients z is overwritten, and all is done for a few rows at a time.
  at::Tensor joined(at::Tensor z, const at::Tensor& pairs, const at::Tensor& mask) const;

 private:
  at::Tensor attended(const at::Tensor& z, const at::Tensor& pairs, const at::Tensor& mask) const;

  std::shared_ptr<const nn::AxialRanks> ranks_;
  nn::GatedHeads heads_;
  std::unique_ptr<nn::Norm> norm_;
  std::unique_ptr<nn::Dense> q_, k_, v_, o_;
};

}  // namespace colossal::models
