#include "colossal/diffusion/clip_length.h"

#include "colossal/base/error.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/run/objectives/diffusion/drawn_clips.h"

namespace colossal::diffusion {

ClipLength clip_length(const run::PipelineSource& source, int64_t frames) {
  const int64_t own = source.sizes.frames;
  require(own > 0 || frames == 0, "draw", "frames needs a model of clips: got ", frames,
          " for a model of pictures; leave it out");
  if (own == 0) return {};
  const models::AutoencoderSizes sizes = run::autoencoder_sizes(source);
  if (frames > 0) return {frames, models::latent_frames(sizes, frames)};
  return {models::pixel_frames(sizes, own), own};
}

void check_clip_options(const run::PipelineSource& source, const DrawOptions& options) {
  const ClipLength length = clip_length(source, options.frames);
  if (length.frames == 0) {
    require(options.fps == 0, "draw", "fps needs a model of clips: got ", options.fps,
            " for a model of pictures; leave it out");
    require(options.last.empty(), "draw", "last needs a model of clips: got ", options.last,
            " for a model of pictures; leave it out");
    return;
  }
  require(options.mask.empty(), "draw", "a mask needs a model of pictures: got ", options.mask, " for one of clips, ",
          "whose given frames stay as they are; leave it out");
  require(options.strength == DrawOptions().strength, "draw", "strength needs a model of pictures: got ",
          options.strength, " for one of clips, whose image is its first frame; leave it out");
  require(!options.tiles || run::autoencoder_sizes(source).frames == 0, "draw",
          "tiles need an autoencoder of pictures: got one of clips, which decodes in chunks of time; leave them out");
  const int64_t given = (options.image.empty() ? 0 : 1) + (options.last.empty() ? 0 : 1);
  require(given < length.latents, "draw", "a clip must have frames to draw beside those that are given: got ", given,
          " given of the ", length.latents, " that the model draws; set more frames");
}

}  // namespace colossal::diffusion
