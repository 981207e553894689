#include "colossal/nn/embedding_noise.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "colossal/base/seed.h"
#include "colossal/nn/dropout.h"
#include "colossal/nn/features.h"
#include "colossal/ops/random.h"

namespace colossal::nn {

EmbeddingNoise::EmbeddingNoise(Layers& layers, int64_t hidden)
    : features_(layers.features(hidden, Place::Outside)), tokens_(layers.own_tokens()), part_(layers.field_part()) {}

at::Tensor EmbeddingNoise::forward(const at::Tensor& x, const ForwardContext& step) const {
  if (!step.training || !step.batch || !step.batch->find(kEmbeddingNoise).defined()) return x;
  const uint64_t seed = derive_seed(step.dropout_seed, kEmbeddingNoise);
  const TokenPlaces places(step, tokens_(step), x.size(0), x.size(1));
  std::vector<at::Tensor> drawn;
  for (const Range& run : places.runs)
    drawn.push_back(ops::uniform(x.size(0) * run.size, x.size(2), seed,
                                 {places.first_row * places.sequence + run.first, run.size, places.sequence},
                                 features_->here().first, features_->size(), x.device())
                        .view({x.size(0), run.size, x.size(2)}));
  // NEFTune's scale has sqrt(L H) below the alpha; the field brings sqrt(L).
  const at::Tensor scale =
      part_(step.batch->field(kEmbeddingNoise), step).unsqueeze(-1) / std::sqrt(static_cast<double>(features_->size()));
  return x + (at::cat(drawn, 1) * scale).to(x.scalar_type());
}

}  // namespace colossal::nn
