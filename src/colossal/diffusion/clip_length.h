// The length of the clips of a drawing, and options that only clips have.
//
//   const ClipLength length = clip_length(source, /*frames=*/51);    // 15 latents with Open-Sora 1.2's autoencoder
#pragma once
#include <cstdint>

#include "colossal/diffusion/draw_options.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"

namespace colossal::diffusion {

struct ClipLength {
  int64_t frames = 0;   ///< frames that are shown; 0 = the drawing is of pictures
  int64_t latents = 0;  ///< frames as the model draws them
};

/// Returns the length of a clip of that many frames; 0 = the length for which the model is made. A pipeline of pictures
/// has none. It reads no weights.
/// Errors: ("draw") frames for a model of pictures; those of models::latent_frames() and run::find_source().
ClipLength clip_length(const run::PipelineSource& source, int64_t frames);

/// Checks the options of a pipeline of clips, and that one of pictures is given none of clips. Errors ("draw"): frames,
/// a rate or a last frame of a model of pictures; a mask, a strength or latents' tiles that clips do not have; as many
/// given frames as the latent has. Errors of clip_length().
void check_clip_options(const run::PipelineSource& source, const DrawOptions& options);

}  // namespace colossal::diffusion
