// Noise on embeddings (NEFTune, Jain et al. 2023, arXiv:2310.05914), which regularizes fine-tuning on few texts.
//
//   batch.add("embedding_noise", {scale, {Dim::Row, Dim::Token}});        // scale [B, S] of each token
//   hidden = noise.forward(hidden, step);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"

namespace colossal::nn {

class Features;

/// The field of a batch that turns the noise on: the scale of each token, floating-point [B, S]. NEFTune's is
/// alpha / sqrt(L), where L is the number of tokens of the token's text.
constexpr char kEmbeddingNoise[] = "embedding_noise";

/// Adds noise that is the same under every layout.
class EmbeddingNoise {
 public:
  /// `layers` makes the model; `hidden`: features of a token over all ranks.
  EmbeddingNoise(Layers& layers, int64_t hidden);
  /// Returns x + u scale / sqrt(hidden) while training a batch that has the field, otherwise x. x [B, S, H] is this
  /// rank's part of a hidden state. u is uniform in [-1, 1); it depends only on the step's seed and the logical index
  /// of the element. Gradient: that of x.
  at::Tensor forward(const at::Tensor& x, const ForwardContext& step) const;

 private:
  std::shared_ptr<const Features> features_;
  OwnTokens tokens_;
  FieldPart part_;
};

}  // namespace colossal::nn
