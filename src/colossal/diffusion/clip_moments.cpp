#include "colossal/diffusion/clip_moments.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/models/autoencoder_kl_rows.h"
#include "colossal/nn/batch_step.h"

namespace colossal::diffusion {

namespace {

/// Returns the bytes of the largest hidden state of an encoder that reads a whole clip.
int64_t largest_state(const models::Model& vae, const at::Tensor& pixels) {
  using tensor::Dim;
  constexpr int kHidden = models::AutoencoderStates::hidden;
  tensor::Batch batch;
  batch.add("images", {pixels, {Dim::Row, Dim::Other, Dim::Other, Dim::Other, Dim::Other}});
  const nn::ForwardContext step = nn::step_of(batch);
  int64_t most = 0;
  for (int64_t block = -1; block < models::autoencoder_of(vae.shape).encoder_blocks; ++block) {
    int64_t bytes = pixels.element_size();
    for (const int64_t size : vae.states.at(kHidden).sizes(step, block)) bytes *= size;
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace

at::Tensor encoded_moments(const models::Model& vae, const at::Tensor& pixels, const nn::Parameters* parameters) {
  const auto of_pictures = [&](const at::Tensor& pictures) {
    return parameters ? models::moments_exactly(vae, *parameters, pictures) : models::moments_of(vae, pictures);
  };
  if (pixels.dim() == 4) return of_pictures(pixels);
  const models::AutoencoderSizes sizes = models::autoencoder_of(vae.shape);
  const bool is_whole = sizes.frames > 0 && sizes.chunk_frames == 0;
  // In chunks a whole clip takes twice the operations.
  if (is_whole && largest_state(vae, pixels) <= kWholeStateBytes) return models::moments_of_clips(vae, pixels);
  std::vector<at::Tensor> frames;
  if (sizes.frames > 0) {  // a few frames at once, whose hidden states are large
    models::encode_in_chunks(
        vae, pixels.size(2), [&](int64_t first, int64_t count) { return pixels.narrow(2, first, count); },
        [&](const at::Tensor& moments) { frames.push_back(moments); }, {.parameters = parameters});
    return at::cat(frames, 2);
  }
  for (const at::Tensor& frame : pixels.unbind(2)) frames.push_back(of_pictures(frame.contiguous()));
  return at::stack(frames, 2);
}

}  // namespace colossal::diffusion
