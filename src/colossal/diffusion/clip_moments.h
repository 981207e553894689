// Latents of pictures and of clips, as runs encode them.
//
//   const at::Tensor moments = diffusion::encoded_moments(vae, pixels)[0];     // mean and log-variance
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/models/model.h"

namespace colossal::diffusion {

/// Encodes a picture [1, 3, H, W] or a clip [1, 3, T, H, W] in [-1, 1]. An autoencoder of pictures encodes a clip frame
/// by frame, and one of chunks a few frames at once, so that memory does not grow with T. Returns the mean, then the
/// log-variance, [1, 2 C, h, w] or [1, 2 C, t, h, w]. Errors: those of models::moments_of() and moments_of_clips().
at::Tensor encoded_moments(const models::Model& vae, const at::Tensor& pixels);

}  // namespace colossal::diffusion
