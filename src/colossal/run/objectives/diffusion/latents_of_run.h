// Where a run keeps its latents, and what they follow from.
//
//   LatentCache cache(folder_of_latents(config, keys), key_of_latents(config, pipeline));
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "colossal/run/config.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/latent_cache.h"

namespace colossal::run {

/// Returns the folder of data.latents. Errors ("data"): none is named.
std::string folder_of_latents(const Config& config, const DrawnDataKeys& keys);

/// Returns the key of the latents of a run. Cost: reads the weights of the autoencoder and of the text encoder once.
/// Errors: those of find_source() and checksum_of().
LatentCacheKey key_of_latents(const Config& config, const PipelineSource& pipeline);

/// Returns what is true for a picture of which the cache has a crop: it was decoded (skip_broken()). `mirror`: the
/// cache must also have the mirror image. Of videos the cache has marks_of_decoded(). The cache must outlive the
/// function.
std::function<bool(const DrawnPicture&)> encoded_in(const LatentCache& cache, bool mirror);

/// Returns what a cache stores of the pictures and videos of a model of clips that skip_broken() left: that each can be
/// decoded to its end. Empty for a model of pictures.
std::map<std::string, at::Tensor> marks_of_decoded(const DrawnPictures& drawn, const LatentCache& cache);

/// Returns the captions that a run needs: those of the pictures, the empty one and training.sample_prompt; none for a
/// model that reads no text.
std::vector<std::string> captions_of(const Config& config, const PipelineSource& pipeline,
                                     const std::vector<const DrawnPictures*>& pictures);

/// Returns true if the model of a run has its text encoder within it, because its adapters are trained
/// (adapter.text_encoder). No states of captions are then stored.
bool trains_text_encoder(const Config& config);

/// Returns true if the run trains a ControlNet.
bool trains_control(const Config& config);

/// Returns true if the run trains an IP-adapter.
bool trains_image_prompt(const Config& config);

/// Checks that a run can train adapters of the text encoder, if it does. Errors ("adapter"): model.from is no pipeline
/// of pictures; text_encoder.from, because the weights are those of model.from.
void check_text_encoder(const Config& config);

/// Returns lines for the user about captions of which the text encoder does not read the end, at most a few.
/// Errors: those of text::make_captions().
std::vector<std::string> caption_warnings(const PipelineSource& pipeline, const std::vector<std::string>& captions);

}  // namespace colossal::run
