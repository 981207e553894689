// Models that encode pictures as latents and decode latents as pictures: what an objective, a denoiser and a drawing
// need to know of them.
//
//   const models::AutoencoderSizes sizes = models::autoencoder_of(shape);
//   const at::Tensor moments = models::moments_of(model, pixels);                 // mean and log-variance
//   const at::Tensor latent = models::latent_of(sizes, moments.chunk(2, 1)[0]);   // what a denoiser reads
//   const at::Tensor drawn = models::decoded(model, models::sample_of(sizes, latent));
//
// A family sets AutoencoderSizes in Architecture::settle. Its first AutoencoderSizes::encoder_blocks blocks encode, the
// others decode. Its model reads these fields, of Dim::Row and three times Dim::Other:
//
//   images   pictures [B, 3, H, W] in [-1, 1], converted to the dtype of the model
//   noise    standard normal numbers [B, C, h, w] of which the latent is drawn: mean + exp(logvar / 2) noise. A batch
//            without it has the mean as latent
//   latents  [B, C, h, w]: only of batches that are decoded, in place of images. Its sizes count, not its values
//
// States (AutoencoderStates): the hidden state, the moments [B, h w, 2 C] with the mean first and the log-variance in
// [-30, 20], and the latent [B, h w, C], both in fp32 at least. At the end of the model the hidden state is the
// reconstruction as pixels, [B, H W, 3], row by row and in fp32 at least, and the moments are those of the encoder.
//
// Autoencoders of clips (models/autoencoder_clips.h) have the same fields and states of clips [B, C, T, H, W], frame by
// frame, and take pictures as clips of one frame.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "colossal/models/model.h"
#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {

/// Indices of the states of an autoencoder.
struct AutoencoderStates {
  static constexpr int hidden = 0, moments = 1, latent = 2;
};

/// Returns the sizes of a model that encodes and decodes pictures. Errors ("objective"): another kind of model.
AutoencoderSizes autoencoder_of(const ModelShape& shape);

/// Returns the reconstruction as pictures [B, 3, H, W], from the end of the model [B, H W, 3]. Errors ("model"): an end
/// of other sizes.
at::Tensor reconstructed_pictures(const at::Tensor& end, int64_t height, int64_t width);

// The functions below run in one process, without gradients.

/// Encodes pictures [B, 3, H, W] in [-1, 1]. Returns the mean, then the log-variance in [-30, 20], of the latent:
/// [B, 2 C, h, w] in fp32 at least. Errors ("model"): pictures of fewer pixels than a cell.
at::Tensor moments_of(const Model& model, const at::Tensor& pixels);
/// Decodes samples of latents [B, C, h, w], without the scaling of a denoiser. Returns pictures [B, 3, H, W], about in
/// [-1, 1], in fp32 at least. Errors ("model"): latents of other channels.
at::Tensor decoded(const Model& model, const at::Tensor& latents);

/// Returns the name of the first part of the decoder whose numbers are not finite; "" = all are (models/not_finite.h).
std::string not_finite_in_decoder(const Model& model, const at::Tensor& latents);

/// Returns the latent that a denoiser reads for a sample [B, C, ...]: (sample - shift) * scaling, from which the mean
/// of its channel is subtracted and which is divided by its deviation, if the sizes have them. Errors ("model"): other
/// channels.
at::Tensor latent_of(const AutoencoderSizes& sizes, const at::Tensor& sample);
/// Returns the sample to decode for a latent of a denoiser: the reverse.
at::Tensor sample_of(const AutoencoderSizes& sizes, const at::Tensor& latent);

}  // namespace colossal::models
