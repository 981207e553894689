#include "colossal/nn/embedding_noise.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/seed.h"
#include "colossal/nn/features.h"
#include "colossal/nn/logical_rows.h"
#include "colossal/ops/random.h"

namespace colossal::nn {

EmbeddingNoise::EmbeddingNoise(Layers& layers, int64_t hidden)
    : features_(layers.features(hidden, Place::Outside)), tokens_(layers.own_tokens()), part_(layers.field_part()) {}

at::Tensor EmbeddingNoise::forward(const at::Tensor& x, const ForwardContext& step) const {
  if (!step.training || !step.batch || !step.batch->find(kEmbeddingNoise).defined()) return x;
  const uint64_t seed = derive_seed(step.dropout_seed, kEmbeddingNoise);
  const at::Tensor drawn =
      by_logical_rows(x, tokens_(step), step.first_row, [&](const at::Tensor& run, const ops::LogicalRows& rows) {
        return ops::uniform(run.size(0) * run.size(1), run.size(2), seed, rows, features_->here().first,
                            features_->size(), x.device())
            .view(run.sizes());
      });
  // NEFTune's scale has sqrt(L H) below the alpha; the field brings sqrt(L).
  const at::Tensor scale =
      part_(step.batch->field(kEmbeddingNoise), step).unsqueeze(-1) / std::sqrt(static_cast<double>(features_->size()));
  return x + (drawn * scale).to(x.scalar_type());
}

}  // namespace colossal::nn
