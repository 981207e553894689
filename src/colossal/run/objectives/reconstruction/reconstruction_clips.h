// The clips that an autoencoder of clips learns to reconstruct: videos and pictures, or drawn shapes that move, read as
// a model that draws clips reads them (drawn_clips.h), but without captions.
//
//   const run::ReconstructionClips clips(config, keys, models::autoencoder_of(shape));
//   const run::OpenedData data = clips.open(request, options);                  // batches of clips of one length each
//
// An autoencoder of chunks (models::AutoencoderSizes::chunk_frames) learns from clips of at most one chunk, because
// each chunk is encoded and decoded alone.
#pragma once
#include <cstdint>

#include "colossal/data/videos/clip_lengths.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/config.h"
#include "colossal/run/objective.h"
#include "colossal/run/objectives/diffusion/diffusion_keys.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"
#include "colossal/run/objectives/reconstruction/latent_noise_samples.h"
#include "colossal/run/objectives/reconstruction/reconstruction_keys.h"

namespace colossal::run {

/// Returns the keys as a model that draws has them: all clips have one size.
DrawnDataKeys drawn_keys(const ReconstructionDataKeys& keys);

/// The lengths of the clips of a run, and their data.
class ReconstructionClips {
 public:
  /// Errors ("data"): lengths that the autoencoder cannot make or, of chunks, that are longer than one; those of
  /// data::completed().
  ReconstructionClips(const Config& config, const ReconstructionDataKeys& keys, const models::AutoencoderSizes& sizes);

  /// Returns `options` for clips of so many frames.
  LatentNoiseOptions with_frames(LatentNoiseOptions options, int64_t frames) const;
  /// Returns the number of frames of the batches with the most frames.
  int64_t largest_frames() const;
  /// Returns true if there are several lengths.
  bool varies() const { return lengths_.frames.size() > 1; }
  /// Opens data.path. `options`: those of the clips but for their frames. Errors: those of open_drawn_pictures(),
  /// skip_broken(), check_clip_batches(), check_one_shape() and choose_clips().
  OpenedData open(const DataRequest& request, const LatentNoiseOptions& options) const;

 private:
  models::AutoencoderSizes sizes_;
  DrawnDataKeys keys_;
  PipelineSource source_;  // the autoencoder as a model that draws pixels
  data::ClipLengths lengths_;
};

}  // namespace colossal::run
