#include "colossal/diffusion/sample_clip.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string>

#include "colossal/data/videos/clip_encoder.h"
#include "colossal/diffusion/clip_length.h"
#include "colossal/diffusion/decoded_clip.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/diffusion/told_captions.h"
#include "colossal/train/engine.h"

namespace colossal::diffusion {

run::Sample sample_clip(train::Engine& engine, const run::PipelineSource& source, PipelineParts& parts,
                        const ClipToSample& what) {
  const double guidance = source.keys.guidance, rate = what.fps > 0 ? what.fps : kDefaultRate;
  const ClipLength length = clip_length(source, what.frames);
  const ToldCaptions captions = read_captions(source, parts,
                                              {.prompt = what.prompt,
                                               .is_guided = run::has_second_pass(source, guidance),
                                               .fps = rate,
                                               .frames = length.frames});
  const noise::SamplerPlan plan = run::plan_of(source, {.steps = what.steps, .frames = length.latents});
  const at::Tensor clip = draw(engine.distributed(), plan,
                               {.told = captions.told,
                                .untold = captions.untold,
                                .seeds = {what.seed},
                                .size = {source.sizes.height, source.sizes.width},
                                .frames = length.latents,
                                .guidance = guidance,
                                .stop_requested = what.stops});
  std::string bytes;
  std::unique_ptr<data::ClipEncoder> gif;
  decode_clip(parts, engine.mesh(), {.clip = clip, .frames = length.frames}, [&](const data::Picture& frame) {
    if (!gif)
      gif = data::encode_gif({.width = frame.width, .height = frame.height, .fps = std::min(rate, data::kMostGifRate)},
                             [&bytes](std::string_view piece) { bytes += piece; });
    gif->add(frame);
  });
  if (gif) gif->finish();
  return run::clip_sample(what.prompt, "prompt-1", std::move(bytes));
}

}  // namespace colossal::diffusion
