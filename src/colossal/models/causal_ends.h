// The end of an encoder of clips and the beginning of its decoder, as the autoencoders of clips have them.
//
//   const CausalMoments moments("blocks.9", {.in = 512, .latent = 16, .side = 3}, style, make);
//   moments.forward(states, {32, 48}, step);             // reads hidden, writes the moments and the latent
//   const CausalLatent latent("blocks.10", 16, 512, style, make);
//   x = latent.forward(states[AutoencoderStates::latent], {32, 48}, step);   // [B, 4 * 32 * 48, 16] -> [B, 4, .., 512]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/models/causal_resnet.h"
#include "colossal/models/model.h"
#include "colossal/nn/clips.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"

namespace colossal::models {

/// The end of an encoder: parameters `name`.norm, conv and quant.
class CausalMoments {
 public:
  struct Sizes {
    int64_t in = 0, latent = 0;  ///< features of the hidden state and channels of the latent
    int64_t side = 1;            ///< frames, rows and columns of the kernel of `conv`
  };
  CausalMoments(const std::string& name, const Sizes& sizes, const CausalStyle& style, nn::Layers& make);
  /// Reads AutoencoderStates::hidden, and writes the moments and a latent that is drawn of them.
  void forward(States& states, const ops::PictureSize& size, const nn::ForwardContext& step) const;

 private:
  nn::FieldPart part_;
  std::unique_ptr<nn::ClipNorm> norm_;
  std::unique_ptr<nn::ClipConvolution> conv_, quant_;
};

/// The beginning of a decoder: parameters `name`.quant and conv.
class CausalLatent {
 public:
  CausalLatent(const std::string& name, int64_t latent, int64_t out, const CausalStyle& style, nn::Layers& make);
  /// Takes a latent [B, frames * cells, latent] and returns the hidden state [B, frames, cells, out].
  at::Tensor forward(const at::Tensor& latent, const ops::PictureSize& size, const nn::ForwardContext& step) const;

 private:
  at::ScalarType dtype_;
  std::unique_ptr<nn::ClipConvolution> quant_, conv_;
};

}  // namespace colossal::models
