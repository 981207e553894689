// Encodes what the latent cache of a run lacks: each picture and caption once, on one of the ranks.
//
//   fill_latents(world, cache, {.pipeline = pipeline, .pictures = {&drawn}, .captions = captions}, device, program);
#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "colossal/comm/world.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/latent_cache.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"
#include "colossal/run/program.h"

namespace colossal::diffusion {

/// What a cache shall hold.
struct LatentWork {
  run::PipelineSource pipeline;
  std::vector<const run::DrawnPictures*> pictures;  ///< those of clips with their parts (run::add_parts())
  std::vector<std::string> captions;
  run::ImageEncoderSource image_encoder{};  ///< of an IP-adapter, which embeds the pictures; without a path: none does
  bool mirror = false;                      ///< also the pictures mirrored left to right
  data::OnError on_error = data::OnError::Refuse;  ///< Skip = the cache lacks pictures that cannot be decoded
  at::ScalarType dtype = at::kFloat;
};

/// Encodes what the cache lacks, and opens it. The encoders are in memory one after the other, and then the
/// autoencoder. Each rank encodes a share; a value does not depend on the rank that makes it.
/// Communication: the ranks agree that all are done. All ranks of `world` call it and throw alike.
/// Errors: those of OwnModel and, unless it is skipped, of decoding a picture.
void fill_latents(comm::World& world, run::LatentCache& cache, const LatentWork& work, at::Device device,
                  const run::Program& program);

}  // namespace colossal::diffusion
