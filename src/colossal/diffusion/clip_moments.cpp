#include "colossal/diffusion/clip_moments.h"

#include <ATen/ATen.h>

#include <vector>

#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"

namespace colossal::diffusion {

at::Tensor encoded_moments(const models::Model& vae, const at::Tensor& pixels) {
  if (pixels.dim() == 4) return models::moments_of(vae, pixels);
  if (models::autoencoder_of(vae.shape).frames > 0) return models::moments_of_clips(vae, pixels);
  std::vector<at::Tensor> frames;
  for (const at::Tensor& frame : pixels.unbind(2)) frames.push_back(models::moments_of(vae, frame.contiguous()));
  return at::stack(frames, 2);
}

}  // namespace colossal::diffusion
