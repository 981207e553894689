// Samples of pictures with the noise of which an autoencoder draws their latents. Those of clips are in
// reconstruction_clips.h.
//
//   run::LatentNoiseSamples samples(shapes, {.height = 32, .width = 32, .latent_channels = 4, .factor = 4});
//
// Fields, B rows: "images" fp32 [B, C, H, W], pixels in [-1, 1]; "noise" fp32 [B, latent channels, h, w], standard
// normal numbers; "counts" fp32 [B]: 1, or 0 in rows that only fill up the last batch of an evaluation. Clips have
// "images" [B, C, T, H, W] and "noise" [B, latent channels, t, h, w].
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/nn/forward_context.h"

namespace colossal::run {

/// Name of the field that marks the rows that count.
inline constexpr char kCounts[] = "counts";

/// Options of LatentNoiseSamples.
struct LatentNoiseOptions {
  int64_t channels = 3, height = 0, width = 0;  ///< of pictures
  int64_t latent_channels = 0;
  int64_t factor = 1;        ///< pixels of a side for each cell of a latent
  bool mirror = false;       ///< true = every second picture on average is mirrored left to right
  bool is_held_out = false;  ///< true = the noise of a sample depends on its index alone, and no picture is mirrored
  int64_t frames = 0, latent_frames = 0;  ///< of clips and of their latents; 0 = pictures
};

/// Returns a batch of those fields, zeros. `device` may be meta.
tensor::Batch latent_noise_batch(int64_t rows, const LatentNoiseOptions& options, at::Device device = at::kCPU);

/// Writes sample `index`, a picture [C, H, W] or a clip [C, T, H, W], into row `row` of such a batch, with its noise,
/// and mirrors it if it is the turn. Errors ("data"): other sizes than those of the batch.
void fill_latent_noise(const at::Tensor& picture, int64_t index, uint64_t seed, const LatentNoiseOptions& options,
                       tensor::Batch& batch, int64_t row);

/// Returns the frames of the clips of a batch, 1 for pictures.
int64_t frames_of(const tensor::Batch& batch);
/// Returns pictures [B, C, H, W] or clips [B, C, T, H, W] on the device and in the dtype of `like`, as pixels
/// [B, H W, C] or [B, T H W, C].
at::Tensor pixels_of(const at::Tensor& pictures, const at::Tensor& like);
/// Returns 1 for each row of step.batch that counts and 0 for the others, [B], on the device and in the dtype of
/// `like`.
at::Tensor counts_of(const at::Tensor& like, const nn::ForwardContext& step);

/// Adds noise to samples with the field "images", whose pixels are in [-1, 1]. Noise and mirror image are pure
/// functions of (seed, epoch, sample).
class LatentNoiseSamples final : public data::Samples {
 public:
  LatentNoiseSamples(std::shared_ptr<const data::Samples> pictures, const LatentNoiseOptions& options);
  int64_t count() const override { return pictures_->count(); }
  tensor::Batch make(int64_t rows) const override { return latent_noise_batch(rows, options_); }
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  nlohmann::json traits() const override;
  std::vector<std::string> take_notices() const override { return pictures_->take_notices(); }

 private:
  std::shared_ptr<const data::Samples> pictures_;
  LatentNoiseOptions options_;
};

}  // namespace colossal::run
