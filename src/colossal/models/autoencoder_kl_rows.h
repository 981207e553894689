// Decodes and encodes large pictures by bands of rows: the numbers of models/autoencoder.h in bounded memory.
//
//   const at::Tensor pixels = models::decoded_by_rows(model, parameters, latents);      // 1024 px: 0.8 GiB and weights
//   const at::Tensor moments = models::moments_by_rows(model, parameters, pixels);
//
// It is exact, other than tiles: a norm reads all rows before it changes one, a convolution of 3 x 3 reads a row more
// on both sides of a band, and all cells attend to each other at the smallest size. The order of sums in norms is
// another one, so results differ by rounding. Of AutoencoderKL (models/families/autoencoder_kl.h) in one process.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/models/model.h"
#include "colossal/nn/parameter.h"

namespace colossal::models {

/// Limits of the memory.
struct RowOptions {
  /// Hidden states that are stored at once, in bytes. What does not fit beside the state that a block reads is computed
  /// again for each band that needs it. A state between two blocks is stored even if it is larger.
  int64_t stored_bytes = int64_t{800} << 20;
  int64_t band_elements = int64_t{1} << 22;  ///< of the widest tensor of a band; a band has at least two rows
};

/// Returns true if pictures of that many cells of a latent should be decoded and encoded by rows: if they have more
/// than 512 x 512 pixels.
bool prefers_rows(const ModelShape& shape, int64_t cells);

/// Decodes as decoded() does. `parameters` are those of the model.
/// Memory: RowOptions, a few bands, and the weights. Cost at 1024 px: about 1.3 times the operations of decoded().
/// Errors ("model"): those of decoded(); a model of another family.
at::Tensor decoded_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& latents,
                           const RowOptions& options = {});
/// Encodes as moments_of() does. Memory and cost: as decoded_by_rows(). Errors ("model"): those of moments_of(); a
/// model of another family.
at::Tensor moments_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& pixels,
                           const RowOptions& options = {});

}  // namespace colossal::models
