#include "colossal/models/causal_ends.h"

#include <ATen/ATen.h>

#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_kl_parts.h"

namespace colossal::models {

CausalMoments::CausalMoments(const std::string& name, const Sizes& sizes, const CausalStyle& style, nn::Layers& make)
    : part_(make.field_part()),
      norm_(make.clip_norm(name + ".norm", sizes.in, style.groups)),
      conv_(make.causal_convolution(name + ".conv", sizes.in, 2 * sizes.latent, style.kernel(sizes.in, sizes.side))),
      quant_(make.causal_convolution(name + ".quant", 2 * sizes.latent, 2 * sizes.latent,
                                     style.kernel(2 * sizes.latent, 1))) {}

void CausalMoments::forward(States& states, const ops::PictureSize& size, const nn::ForwardContext& step) const {
  const at::Tensor x = conv_->forward(at::silu(norm_->forward(states[AutoencoderStates::hidden], step)), size, step);
  states[AutoencoderStates::moments] = autoencoder_kl_moments(quant_->forward(x, size, step).flatten(1, 2));
  states[AutoencoderStates::latent] = autoencoder_kl_latent(states[AutoencoderStates::moments], part_, step);
}

CausalLatent::CausalLatent(const std::string& name, int64_t latent, int64_t out, const CausalStyle& style,
                           nn::Layers& make)
    : dtype_(make.parameters().options().dtype),
      quant_(make.causal_convolution(name + ".quant", latent, latent, style.kernel(latent, 1))),
      conv_(make.causal_convolution(name + ".conv", latent, out, style.kernel(latent, 3))) {}

at::Tensor CausalLatent::forward(const at::Tensor& latent, const ops::PictureSize& size,
                                 const nn::ForwardContext& step) const {
  const at::Tensor x = latent.to(dtype_).unflatten(1, {-1, size.pixels()});
  return conv_->forward(quant_->forward(x, size, step), size, step);
}

}  // namespace colossal::models
