// The layers of AutoencoderKL's blocks, which the autoencoders of clips use for each frame.
//
//   const AutoencoderKlLayer layer = autoencoder_kl_layer(sizes, block, "blocks.3", make);
//   y = layer(x, {32, 48}, step);                                   // [B, 32 * 48, in] -> [B, pixels, out]
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "colossal/models/families/autoencoder_kl.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/ops/convolution.h"

namespace colossal::models {

inline constexpr double kAutoencoderKlEpsilon = 1e-6;  ///< of its norms

/// A function of hidden states [B, pixels, features] of pictures of that size.
using AutoencoderKlLayer =
    std::function<at::Tensor(const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext& step)>;

/// Makes the layers of a block, whose parameters begin with `name`. Those of Kind::Moments return the moments before
/// their limits (autoencoder_kl_moments()), those of Kind::Latent read a latent.
AutoencoderKlLayer autoencoder_kl_layer(const AutoencoderKlSizes& own, const AutoencoderKlBlock& b,
                                        const std::string& name, nn::Layers& make);

/// Returns the options of a convolution of `in` features whose initial weights have the deviation that LibTorch gives
/// them.
nn::LinearOptions autoencoder_kl_kernel(int64_t in, int64_t side);

/// Returns the latent of moments [B, cells, 2 C]: the mean, or with the field `noise` [B, C, ...] of the batch
/// mean + exp(logvar / 2) noise.
at::Tensor autoencoder_kl_latent(const at::Tensor& moments, const nn::FieldPart& part, const nn::ForwardContext& step);

}  // namespace colossal::models
