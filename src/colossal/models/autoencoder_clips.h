// Encodes and decodes clips, whole or in chunks of time.
//
//   const at::Tensor moments = models::moments_of_clips(model, pixels);        // [B, 3, T, H, W] -> [B, 2 C, t, h, w]
//   models::decode_in_chunks(model, latents, [&](const at::Tensor& frames) { write(frames); });
//
// An autoencoder of one of three kinds (AutoencoderSizes) takes clips:
//
//   of pictures            each frame alone                                    frames = 0
//   of chunks              chunks of frames, each alone (Open-Sora 1.2's)      chunk_frames > 0
//   of whole clips         all frames: causal in time, but norms read the      otherwise
//                          whole clip (HunyuanVideo's)
//
// In chunks the numbers are those of the whole clip, up to the order of sums in norms. Memory does not grow with the
// frames, except that each cell of a whole clip attends to earlier ones: their keys and values, at the smallest size,
// are stored. diffusers cuts clips of more than 16 frames into tiles of time that it blends, so its numbers differ.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "colossal/models/clip_sizes.h"
#include "colossal/models/model.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/parameter.h"

namespace colossal::models {

/// Returns the frames of the latent of a clip. Errors ("model"): frames that the autoencoder cannot make, such as other
/// than 4 k + 1, with the nearest; fewer than one.
int64_t latent_frames(const AutoencoderSizes& sizes, int64_t frames);
/// Returns the number of frames that a latent of so many frames is decoded to, if the caller does not say: the least
/// that it may stand for. Errors ("model"): fewer than one.
int64_t pixel_frames(const AutoencoderSizes& sizes, int64_t latents);

/// Returns the reconstruction as clips [B, 3, T, H, W], from the end of the model [B, T H W, 3], with gradients. Errors
/// ("model"): an end of other sizes.
at::Tensor reconstructed_clips(const at::Tensor& end, const ClipSize& size);

// The functions below run in one process, without gradients.

/// Encodes clips [B, 3, T, H, W] in [-1, 1]. Returns the mean, then the log-variance in [-30, 20], of the latents:
/// [B, 2 C, t, h, w] in fp32 at least. Memory: that of all frames, or of the largest chunk.
/// Errors ("model"): those of latent_frames(); frames smaller than a cell.
at::Tensor moments_of_clips(const Model& model, const at::Tensor& pixels);
/// Decodes samples of latents [B, C, t, h, w], without the scaling of a denoiser. Returns clips [B, 3, T, H, W], about
/// in [-1, 1], in fp32 at least. `frames`: T; 0 = pixel_frames().
/// Errors ("model"): latents of other channels; frames that a latent of so many does not have.
at::Tensor decoded_clips(const Model& model, const at::Tensor& latents, int64_t frames = 0);

/// Limits of the memory of a clip in chunks.
struct ChunkOptions {
  int64_t latent_frames = 1;  ///< of a latent that a whole clip passes at once
  /// Elements of a hidden state that a whole clip passes at once. Frames of larger ones pass one by one
  int64_t state_elements = int64_t{1} << 26;
  int64_t band_elements = int64_t{1} << 24;  ///< of frames that a convolution of it reads at once, by bands of rows
  int64_t frames = 4;                        ///< of pixels that blocks pass at once which read each frame alone
  /// Hidden states between two blocks that are stored at once, in bytes. Behind the last state that fits, a norm reads
  /// chunks that are computed again for each norm
  int64_t stored_bytes = int64_t{800} << 20;
  /// Parameters of the model: frames of more than 512 x 512 pixels that are read alone pass by rows, if the model can
  /// (models/autoencoder_kl_rows.h). Null = frames are whole
  const nn::Parameters* parameters = nullptr;
  bool saves_memory = false;  ///< such frames pass by rows whatever their size
};

/// Returns frames [first, first + count) of clips, [B, channels, count, H, W].
using FrameReader = std::function<at::Tensor(int64_t first, int64_t count)>;
/// Takes the next frames of clips, in their order, [B, channels, n, H, W]. Each chunk ends with whole frames.
using FrameTaker = std::function<void(const at::Tensor& frames)>;

/// Encodes clips of so many frames as moments_of_clips() does, chunk by chunk: calls `read` for frames, more than once
/// for the same ones, and `take` for moments.
/// Memory: ChunkOptions, a chunk, and the weights. Cost of a whole clip whose states fit: twice that of
///         moments_of_clips(); otherwise once more for each norm behind the last state that fits.
/// Errors ("model"): those of moments_of_clips().
void encode_in_chunks(const Model& model, int64_t frames, const FrameReader& read, const FrameTaker& take,
                      const ChunkOptions& options = {});
/// Decodes as decoded_clips() does, chunk by chunk, and calls `take` for pixels as soon as they are ready. Memory and
/// cost: as encode_in_chunks(). Errors ("model"): those of decoded_clips().
void decode_in_chunks(const Model& model, const at::Tensor& latents, const FrameTaker& take, int64_t frames = 0,
                      const ChunkOptions& options = {});

}  // namespace colossal::models
