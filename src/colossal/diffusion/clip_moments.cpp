#include "colossal/diffusion/clip_moments.h"

#include <ATen/ATen.h>

#include <vector>

#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"

namespace colossal::diffusion {

at::Tensor encoded_moments(const models::Model& vae, const at::Tensor& pixels) {
  if (pixels.dim() == 4) return models::moments_of(vae, pixels);
  const models::AutoencoderSizes sizes = models::autoencoder_of(vae.shape);
  if (sizes.frames > 0 && sizes.chunk_frames == 0) return models::moments_of_clips(vae, pixels);
  std::vector<at::Tensor> frames;
  if (sizes.frames > 0) {  // a few frames at once, whose hidden states are large
    models::encode_in_chunks(
        vae, pixels.size(2), [&](int64_t first, int64_t count) { return pixels.narrow(2, first, count); },
        [&](const at::Tensor& moments) { frames.push_back(moments); });
    return at::cat(frames, 2);
  }
  for (const at::Tensor& frame : pixels.unbind(2)) frames.push_back(models::moments_of(vae, frame.contiguous()));
  return at::stack(frames, 2);
}

}  // namespace colossal::diffusion
