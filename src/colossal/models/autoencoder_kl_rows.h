// Decodes and encodes large pictures by bands of rows: the numbers of models/autoencoder.h in bounded memory.
//
//   const at::Tensor pixels = models::decoded_by_rows(model, parameters, latents);      // 1024 px: 0.8 GiB and weights
//   const at::Tensor moments = models::moments_by_rows(model, parameters, pixels);
//
// It is exact, other than tiles: a norm reads all rows before it changes one, a convolution of 3 x 3 reads a row more
// on both sides of a band, and all cells attend to each other at the smallest size. The order of sums in norms is
// another one, so results differ by rounding. Of AutoencoderKL (models/families/autoencoder_kl.h).
//
// Ranks can share the rows of a picture (RowOptions::ranks). Each has neighbouring rows, which it computes by bands. A
// convolution gets the row next to them from each neighbour, norms sum over the ranks, and cells attend to the keys and
// values of all ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/models/families/autoencoder_kl.h"
#include "colossal/models/model.h"
#include "colossal/models/row_ranks.h"
#include "colossal/nn/parameter.h"
#include "colossal/ops/convolution.h"

namespace colossal::models {

/// Limits of the memory, and the ranks.
struct RowOptions {
  /// Hidden states that are stored at once, in bytes. What does not fit beside the state that a block reads is computed
  /// again for each band that needs it. A state between two blocks is stored even if it is larger.
  int64_t stored_bytes = int64_t{800} << 20;
  int64_t band_elements = int64_t{1} << 22;  ///< of the widest tensor of a band; a band has at least two rows
  /// The ranks that share the rows of each picture, which all of them pass and get whole; null = this process alone.
  /// Each has some rows of the latent and the pixels of these; with fewer rows than ranks, each computes all.
  RowRanks* ranks = nullptr;
};

/// Returns true if a model can decode and encode by rows: one of the family autoencoder_kl.
bool has_rows(const ModelShape& shape);
/// Returns true if pictures, or frames of clips (has_frame_rows()), of that many cells of a latent should be decoded
/// and encoded by rows: if they have more than 512 x 512 pixels, or several ranks share them.
bool prefers_rows(const ModelShape& shape, int64_t cells, int64_t ranks = 1);

/// Decodes as decoded() does. `parameters` are those of the model.
/// Memory: RowOptions, a few bands, and the weights. Cost at 1024 px: about 1.3 times the operations of decoded(), over
///         all ranks.
/// Communication: that of decoding_traffic() for each picture.
/// Errors ("model"): those of decoded(); a model of another family.
at::Tensor decoded_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& latents,
                           const RowOptions& options = {});
/// Encodes as moments_of() does. Memory and cost: as decoded_by_rows(). Communication: that of encoding_traffic() for
/// each picture. Errors ("model"): those of moments_of(); a model of another family.
at::Tensor moments_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& pixels,
                           const RowOptions& options = {});

/// Returns true if a model of clips has an AutoencoderKL within it, for its frames: one of the family open_sora_vae.
bool has_frame_rows(const ModelShape& shape);
/// Returns the scaling of the latents of that autoencoder (AutoencoderSizes). Requires: has_frame_rows().
double frame_scaling(const ModelShape& shape);
/// Decode latents [n, C, h, w] of frames, and encode frames [n, 3, H, W], with that autoencoder alone, as
/// decoded_by_rows() and moments_by_rows() do. Errors ("model"): those of these; a model of another family.
at::Tensor decoded_frames_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& latents,
                                  const RowOptions& options = {});
at::Tensor frame_moments_by_rows(const Model& model, const nn::Parameters& parameters, const at::Tensor& pixels,
                                 const RowOptions& options = {});

/// Decode and encode by rows where prefers_rows(), whole elsewhere. `ranks`: as RowOptions::ranks. `saves_memory`: by
/// rows whatever the size, where has_rows(), with less stored and more computed again.
/// Errors ("model"): those of decoded() and moments_of().
at::Tensor decoded_exactly(const Model& model, const nn::Parameters& parameters, const at::Tensor& latents,
                           RowRanks* ranks = nullptr, bool saves_memory = false);
at::Tensor moments_exactly(const Model& model, const nn::Parameters& parameters, const at::Tensor& pixels,
                           RowRanks* ranks = nullptr, bool saves_memory = false);

/// Elements that all ranks together send for a picture whose rows they share.
struct RowTraffic {
  int64_t halos = 0;      ///< 2 (n - 1) width channels for a convolution of 3 x 3, half as many if it halves the sides
  int64_t norms = 0;      ///< 2 (n - 1) times 2 groups for a norm
  int64_t attention = 0;  ///< n - 1 times the keys and values of all cells
  int64_t result = 0;     ///< n - 1 times the picture, or the moments
  int64_t total() const { return halos + norms + attention + result; }
};
/// Return the elements for a latent of these cells, and for a picture of these pixels. All are 0 with one rank, and
/// with more ranks than rows of the latent.
RowTraffic decoding_traffic(const AutoencoderKlSizes& sizes, const ops::PictureSize& cells, int64_t ranks);
RowTraffic encoding_traffic(const AutoencoderKlSizes& sizes, const ops::PictureSize& pixels, int64_t ranks);

}  // namespace colossal::models
