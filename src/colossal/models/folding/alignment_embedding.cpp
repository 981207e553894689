#include "colossal/models/folding/alignment_embedding.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>

#include "colossal/models/folding/folding_model.h"
#include "colossal/models/folding/one_hot.h"
#include "colossal/nn/open_gate.h"
#include "colossal/ops/geometry/residues.h"

namespace colossal::models {
namespace {

constexpr int64_t kTargetFeatures = 22, kRowFeatures = 49, kLettersOfRows = 23;

std::unique_ptr<nn::Dense> embedder(nn::Layers& make, const std::string& name, int64_t in, int64_t out) {
  return nn::normed_layer(make, name, in, out, true);
}

}  // namespace

AlignmentEmbedding::AlignmentEmbedding(const AlignmentEmbeddingSizes& s, nn::Layers& make)
    : ranks_(make.axial_ranks()),
      dtype_(make.parameters().options().dtype),
      farthest_(s.farthest),
      left_(embedder(make, "input_embedder.linear_tf_z_i", kTargetFeatures, s.pair)),
      right_(embedder(make, "input_embedder.linear_tf_z_j", kTargetFeatures, s.pair)),
      target_(embedder(make, "input_embedder.linear_tf_m", kTargetFeatures, s.alignment)),
      row_(embedder(make, "input_embedder.linear_msa_m", kRowFeatures, s.alignment)),
      offset_(embedder(make, "input_embedder.linear_relpos", 2 * s.farthest + 1, s.pair)),
      distance_(embedder(make, "recycling_embedder.linear", ops::kRecycledDistances.count, s.pair)),
      extra_(embedder(make, "extra_msa_embedder.linear", kLettersOfRows + 2, s.extra)),
      single_norm_(make.layer_norm("recycling_embedder.layer_norm_m", s.alignment, {})),
      pair_norm_(make.layer_norm("recycling_embedder.layer_norm_z", s.pair, {})) {}

at::Tensor AlignmentEmbedding::pairs(const tensor::Batch& batch) const {
  const at::Tensor target = batch.at("target_feat").to(dtype_);
  const at::Tensor left = ranks_->part(left_->forward(target).unsqueeze(2), 1),
                   right = right_->forward(target).unsqueeze(1);
  const at::Tensor &index = batch.at("residue_index"), &beta = batch.at("recycled_beta");
  const nn::Range own = ranks_->own(index.size(1));
  at::Tensor z = own_recycled_pairs(batch, *ranks_).to(dtype_);
  for_rows(*ranks_, z.size(2), z.size(0) * z.size(2) * z.size(3), [&](int64_t first, int64_t count) {
    const at::Tensor offsets = index.narrow(1, own.first + first, count).unsqueeze(2) - index.unsqueeze(1);
    const at::Tensor near = offsets.clamp(-farthest_, farthest_) + farthest_;
    // Distances below the first limit have no embedding: index -1.
    const at::Tensor bins = ops::bins_of_squares(ops::squared_distances(beta.narrow(1, own.first + first, count), beta),
                                                 ops::kRecycledDistances) -
                            1;
    at::Tensor some = z.narrow(1, first, count);
    const at::Tensor sum = pair_norm_->forward(some) + left.narrow(1, first, count) + right +
                           offset_->forward(one_hot(near, 2 * farthest_ + 1, dtype_)) +
                           distance_->forward(one_hot(bins, ops::kRecycledDistances.count, dtype_));
    if (at::GradMode::is_enabled())
      z = sum;
    else
      some.copy_(sum);
  });
  return z;
}

at::Tensor AlignmentEmbedding::rows(const tensor::Batch& batch, int64_t further) const {
  const at::Tensor& features = batch.at("msa_feat");
  const nn::Range own = first_of(ranks_->own(features.size(1) + further), features.size(1));
  const at::Tensor m = row_->forward(features.narrow(1, own.first, own.size).to(dtype_)) +
                       target_->forward(batch.at("target_feat").to(dtype_)).unsqueeze(1);
  // All ranks use the same weights in the same order, also those without the query.
  const int64_t queries = own.first == 0 && own.size > 0 ? 1 : 0;
  const at::Tensor recycled = single_norm_->forward(batch.at("recycled_single").to(dtype_)).unsqueeze(1);
  return at::cat({m.narrow(1, 0, queries) + recycled.narrow(1, 0, queries), m.narrow(1, queries, m.size(1) - queries)},
                 1);
}

at::Tensor AlignmentEmbedding::extra_rows(const tensor::Batch& batch) const {
  const at::Tensor& letters = batch.at("extra_msa");
  const at::Tensor features =
      at::cat({one_hot(letters, kLettersOfRows, dtype_), batch.at("extra_has_deletion").to(dtype_).unsqueeze(-1),
               batch.at("extra_deletion_value").to(dtype_).unsqueeze(-1)},
              -1);
  if (letters.size(1) > 0) return extra_->forward(ranks_->part(features, 1));
  return extra_->forward(
      ranks_->part(at::zeros({letters.size(0), 1, letters.size(2), kLettersOfRows + 2}, features.options()), 1));
}

at::Tensor extra_mask(const tensor::Batch& batch) {
  const at::Tensor& mask = batch.at("extra_msa_mask");
  if (mask.size(1) > 0) return mask;
  return at::zeros({mask.size(0), 1, mask.size(2)}, mask.options());
}

}  // namespace colossal::models
