// The clip that a run draws while it trains.
//
//   const auto stops = [&] { return trainer.stops(); };
//   const run::Sample sample = sample_clip(trainer.engine(), source, parts, {.prompt = "a circle", .stops = stops});
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"
#include "colossal/run/sample.h"

namespace colossal::train {
class Engine;
}

namespace colossal::diffusion {

struct ClipToSample {
  std::string prompt{};
  uint64_t seed = 1;
  int64_t steps = 25;             ///< of the sampler
  std::function<bool()> stops{};  ///< Drawing::stop_requested
  double fps = 0;                 ///< frames a second, of the GIF at most 50; 0 = kDefaultRate
  int64_t frames = 0;             ///< 0 = those for which the model is made
};

/// Draws a clip with the model of a run that learns clips, of the size of source.sizes, and returns it as a GIF: its
/// bytes on rank 0, none on others. Requires: the pipeline reads text.
/// Communication: that of draw() and decode_clip(); all ranks must call it. Errors: those of clip_length(),
/// draw() and decode_clip().
run::Sample sample_clip(train::Engine& engine, const run::PipelineSource& source, PipelineParts& parts,
                        const ClipToSample& what);

}  // namespace colossal::diffusion
