// The sizes and hidden states of autoencoders of clips (models/autoencoder_clips.h), for the families.
//
//   const auto [clip, is_latent] = clip_of(*step.batch);                       // of the field `images` or `latents`
//   model.states = clip_states(hidden, latent, channels, at::kFloat);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "colossal/models/model.h"
#include "colossal/ops/convolution.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// Sizes of a clip or of its latent.
struct ClipSize {
  int64_t frames = 1;
  ops::PictureSize picture{};  ///< of a frame
};

/// The sizes of the clips that a batch encodes, or of the latents that it decodes.
struct GivenClip {
  ClipSize size{};
  bool is_latent = false;
};
/// Returns them for the fields of models/autoencoder.h. Pictures [B, C, H, W] are clips of one frame.
GivenClip clip_of(const tensor::Batch& batch);

/// Part of a ForwardContext: the frames of the clips whose latents a batch has, if their number is not the least that
/// such latents stand for.
struct ClipFrames {
  int64_t count;
};

/// Returns clips [B, C, T, H, W], or pictures [B, C, H, W], as hidden states [B, T, H W, C].
at::Tensor as_clip_pixels(const at::Tensor& clips);

/// A hidden state [B, frames, pixels, features].
struct ClipState {
  ClipSize size{};
  int64_t features = 0;
};
/// Returns the states of an autoencoder of clips, as AutoencoderStates counts them. `hidden`: the hidden state after a
/// block (-1 = the embedding); `latent`: the sizes of a latent.
std::vector<State> clip_states(const std::function<ClipState(const tensor::Batch& batch, int64_t block)>& hidden,
                               const std::function<ClipSize(const tensor::Batch& batch)>& latent, int64_t channels,
                               at::ScalarType exact);

/// Checks the clips of training. Errors ("model"): a side that is not divisible by `factor`, or frames that are not a
/// multiple of `frame_factor` and one more, with the nearest; `frame_factor` 1 = any frames.
void check_clip_sizes(const ClipSize& size, int64_t factor, int64_t frame_factor);

}  // namespace colossal::models
