#include "colossal/diffusion/clip_moments.h"

#include <ATen/ATen.h>

#include <vector>

#include "colossal/models/autoencoder.h"

namespace colossal::diffusion {

at::Tensor encoded_moments(const models::Model& vae, const at::Tensor& pixels) {
  if (pixels.dim() == 4) return models::moments_of(vae, pixels);
  std::vector<at::Tensor> frames;
  for (const at::Tensor& frame : pixels.unbind(2)) frames.push_back(models::moments_of(vae, frame.contiguous()));
  return at::stack(frames, 2);
}

}  // namespace colossal::diffusion
