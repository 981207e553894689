// Latents of pictures and of clips, as runs encode them.
//
//   const at::Tensor moments = diffusion::encoded_moments(vae, pixels)[0];     // mean and log-variance
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/models/model.h"
#include "colossal/nn/parameter.h"

namespace colossal::diffusion {

/// Bytes of a hidden state up to which an autoencoder of whole clips encodes a clip in one pass.
inline constexpr int64_t kWholeStateBytes = int64_t{256} << 20;

/// Encodes a picture [1, 3, H, W] or a clip [1, 3, T, H, W] in [-1, 1]. An autoencoder of pictures encodes a clip frame
/// by frame, one of chunks a few frames at once, and one of whole clips in chunks of time where its hidden states are
/// larger than kWholeStateBytes, so that memory does not grow with T. `parameters`: those of the autoencoder, with
/// which large frames and pictures pass by rows, if they can; null = they are whole. Returns the mean, then the
/// log-variance, [1, 2 C, h, w] or [1, 2 C, t, h, w]. Errors: those of models::moments_of() and moments_of_clips().
at::Tensor encoded_moments(const models::Model& vae, const at::Tensor& pixels,
                           const nn::Parameters* parameters = nullptr);

}  // namespace colossal::diffusion
