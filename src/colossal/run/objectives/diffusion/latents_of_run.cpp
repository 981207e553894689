#include "colossal/run/objectives/diffusion/latents_of_run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/run/control_source.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/learned_words.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/pipeline_index.h"
#include "colossal/run/program.h"
#include "colossal/text/captions.h"

namespace colossal::run {
namespace {

constexpr size_t kMostWarnings = 5;

/// Returns what the weights of a part follow from.
std::string weights_of(const std::string& part, uint64_t seed) {
  if (part.empty()) return "";
  const ModelSource source = find_source(part, built_in());
  return source.is_preset ? concat(part, "-", seed) : checksum_of(source);
}

}  // namespace

std::string folder_of_latents(const Config& config, const DrawnDataKeys& keys) {
  require(!keys.encodes_in_step() && !keys.latents.empty(), "data", "latents must be \"auto\" or a folder: got \"",
          keys.latents, "\"; set data.latents = \"auto\"");
  return keys.latents == "auto" ? config.run.folder + "/latents" : keys.latents;
}

LatentCacheKey key_of_latents(const Config& config, const PipelineSource& pipeline) {
  constexpr int64_t kUsual = 77;  // tokens of CLIP, which caches have not always named
  std::vector<std::string> encoders;
  for (size_t i = 0; i < pipeline.captions.size(); ++i) {
    const int64_t tokens = pipeline.sizes.captions.at(i).tokens;
    encoders.push_back(
        concat(weights_of(pipeline.captions[i].encoder, pipeline.seed), tokens == kUsual ? "" : concat("-", tokens)));
  }
  if (pipeline.sizes.zero_tokens > 0) encoders.push_back(concat("zeros-", pipeline.sizes.zero_tokens));
  return {.vae = weights_of(pipeline.vae, pipeline.seed),
          .text_encoder = join(encoders),
          .dtype = config.precision.mode == "fp64" ? "F64" : "F32"};
}

std::function<bool(const DrawnPicture&)> encoded_in(const LatentCache& cache, bool mirror) {
  return [&cache, mirror](const DrawnPicture& one) {
    if (one.reached > 0) return cache.has_picture(one.id_of_whole());
    return std::any_of(one.crops.begin(), one.crops.end(),
                       [&](const data::PictureSize& crop) { return cache.has_picture(one.id(crop), mirror); });
  };
}

std::map<std::string, at::Tensor> marks_of_decoded(const DrawnPictures& drawn, const LatentCache& cache) {
  std::map<std::string, at::Tensor> marks;
  if (drawn.fps == 0) return marks;
  for (const std::vector<int64_t>& list : {drawn.training, drawn.held_out})
    for (const int64_t index : list)
      if (const std::string id = drawn.at(index).id_of_whole(); !cache.has_picture(id)) marks[id] = at::ones({1});
  return marks;
}

std::vector<std::string> captions_of(const Config& config, const PipelineSource& pipeline,
                                     const std::vector<const DrawnPictures*>& pictures) {
  if (!pipeline.reads_text()) return {};
  std::set<std::string> captions{"", config.training.sample_prompt};
  for (const DrawnPictures* drawn : pictures)
    for (int64_t i = 0; i < drawn->files->count(); ++i) captions.insert(drawn->files->at(i).caption);
  return {captions.begin(), captions.end()};
}

bool trains_text_encoder(const Config& config) {
  const LowRankKeys keys = adapter_keys(config);
  return (keys.text_encoder && keys.is_low_rank()) || keys.kind == kWordsKind;
}

bool trains_control(const Config& config) { return adapter_keys(config).kind == kControlKind; }

bool trains_image_prompt(const Config& config) { return adapter_keys(config).kind == kImagePromptKind; }

void check_text_encoder(const Config& config) {
  if (!trains_text_encoder(config)) return;
  const char* key =
      adapter_keys(config).kind == kWordsKind ? "adapter.kind = \"textual-inversion\"" : "adapter.text_encoder";
  require(has_pipeline(config.model.from) && !has_pipeline_index(config.model.from), "adapter", key,
          " needs a pipeline of diffusers, whose text encoder has learned: got model.from = \"", config.model.from,
          "\"; write a run as one with `colossal export`, and name that folder");
  const std::string other = config.tables.text(concat(kTextEncoder, ".from")).value_or("");
  require(other.empty(), "adapter", key, " trains with the text encoder of model.from: got text_encoder.from = \"",
          other, "\"; leave it out, and copy that encoder into a pipeline to train with it");
}

std::vector<std::string> caption_warnings(const PipelineSource& pipeline, const std::vector<std::string>& captions) {
  if (!pipeline.reads_text()) return {};
  std::vector<std::string> warnings;
  int64_t more = 0;
  for (size_t i = 0; i < pipeline.captions.size(); ++i) {
    const CaptionSource& source = pipeline.captions[i];
    const text::Captions tokens =
        captions_for(source, pipeline.sizes.captions[i], find_source(source.encoder, built_in()).shape);
    for (const std::string& caption : captions) {
      std::string warning = tokens.warning(tokens(caption));
      if (warning.empty()) continue;
      if (warnings.size() < kMostWarnings)
        warnings.push_back(std::move(warning));
      else
        ++more;
    }
  }
  if (more > 0) warnings.push_back(concat(more, " more captions are longer than the text encoder reads"));
  return warnings;
}

}  // namespace colossal::run
