#include "colossal/run/objectives/diffusion/pipeline_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/model_path.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/caption_parts.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/text_encoder.h"
#include "colossal/run/data.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/pipeline_folder.h"
#include "colossal/run/objectives/diffusion/scheduler_config.h"
#include "colossal/run/stored_config.h"

namespace colossal::run {
namespace {

/// Returns the parts of what training starts from; those of presets if that has none.
PipelineSource parts_of(const Config& config, const models::DenoiserSizes& sizes) {
  const std::string& from = config.model.from;
  if (has_pipeline(from)) {
    PipelineSource source = pipeline_in_folder(from, models::built_in());
    if (source.has_latents())
      source.notices.push_back(concat("the run uses the autoencoder",
                                      source.reads_text() ? " and the text encoder" : "", " of ", from,
                                      ": keep it as long as the run draws"));
    return source;
  }
  if (is_run(from)) {
    // The parts are where the run found them, and not in its folder, as its own model is (stored_config()).
    const ResolvedModel model = resolve_model(read_config<Config>(RunFolder(from).config()), built_in());
    if (const auto* objective = dynamic_cast<const DiffusionObjective*>(model.objective.objective.get()))
      return objective->pipeline();
  }
  PipelineSource source{.vae = sizes.vae, .seed = static_cast<uint64_t>(config.training.seed)};
  for (const models::CaptionPart& part : sizes.captions) source.captions.push_back({part.preset, "bytes"});
  source.keys.target = sizes.target;
  source.keys.schedule = sizes.schedule;
  source.keys.guidance = sizes.guidance;
  source.sampler.sampler = "";  // ddim, or flow
  return source;
}

/// Sets the sampler that draws if nobody names one.
void set_sampler(PipelineSource& source) {
  const bool is_flow = source.keys.noise_target() == noise::Target::Flow;
  if (source.sampler.sampler.empty() || is_flow != (source.sampler.sampler == "flow"))
    source.sampler = {.sampler = is_flow ? "flow" : "ddim"};
  if (is_flow) source.sampler.shift = source.keys.flow().shift;
  source.sampler.target = source.keys.noise_target();
  if (!source.has_latents()) source.sampler.clip = 1;  // pixels are in [-1, 1]
}

}  // namespace

bool has_pipeline(const std::string& path) { return is_pipeline(path) || checkpoint::is_ldm_file(path); }

PipelineSource pipeline_in_folder(const std::string& path, const models::Registry& registry,
                                  const std::string& sampler) {
  const PipelineFolder folder = read_pipeline(path);
  const auto shape_in = [&](const std::string& part) { return registry.shape_of(checkpoint::read_config(part)); };
  const SchedulerConfig scheduler =
      open_scheduler(folder.at("scheduler").folder, {.sampler = sampler, .pipeline = folder.class_name});
  PipelineSource source{.model = folder.denoiser().folder,
                        .sizes = models::denoiser_of(shape_in(folder.denoiser().folder)),
                        .keys = scheduler.keys,
                        .sampler = scheduler.sampler,
                        .class_names = folder.class_names,
                        .notices = folder.notices};
  source.keys.guidance = source.sizes.guidance;
  const PipelinePart* vae = folder.find("vae");
  require(vae != nullptr || source.sizes.channels == 3, "model", "the pipeline ", path,
          " must have a vae, because its model draws latents of ", source.sizes.channels, " channels: got none");
  if (vae != nullptr) {
    const models::AutoencoderSizes sizes = models::autoencoder_of(shape_in(vae->folder));
    require(sizes.channels == source.sizes.channels, "model", "the vae of the pipeline ", path,
            " must have latents of ", source.sizes.channels, " channels, which its model draws: got ", sizes.channels);
    source.vae = vae->folder;
    source.factor = sizes.factor;
  }
  if (!source.reads_text()) return source;
  for (size_t i = 0; i < source.sizes.captions.size(); ++i)
    source.captions.push_back({folder.at(models::caption_part_name(kTextEncoderPart, i)).folder,
                               folder.at(models::caption_part_name("tokenizer", i)).folder});
  std::vector<models::TextEncoderSizes> encoders;
  for (const CaptionSource& one : source.captions) encoders.push_back(models::text_encoder_of(shape_in(one.encoder)));
  try {
    check_encoders(source, encoders);
  } catch (const Error& error) {
    throw Error("model", concat("the parts of the pipeline ", path, " must fit each other: ", error.message()));
  }
  return source;
}

void set_autoencoder(PipelineSource& source, const std::string& from) {
  const bool is_own = !from.empty() && from != "none";
  if (from == "none") source.vae.clear();
  if (is_own) source.vae = has_pipeline(from) ? read_pipeline(from).at("vae").folder : from;
  if (!source.has_latents()) {
    require(source.sizes.channels == 3, "model", "channels must be 3 for a model of pixels (vae.from = \"none\"): got ",
            source.sizes.channels, "; set model.channels = 3, or vae.from to an autoencoder");
    source.factor = 1;
    return;
  }
  const ModelSource vae = find_source(source.vae, built_in());
  const models::AutoencoderSizes sizes = models::autoencoder_of(vae.shape);
  require(sizes.channels == source.sizes.channels, "vae", "the latents of from = ", source.vae, " must have the ",
          source.sizes.channels, " channels of the model: got ", sizes.channels, "; name another autoencoder, or set ",
          "vae.from = \"none\" for a model of pixels");
  source.factor = sizes.factor;
  const std::string notice = concat("the autoencoder ", source.vae,
                                    " has random weights: losses are real, but pictures show nothing; set vae.from to "
                                    "the folder or run of a trained one");
  std::erase(source.notices, notice);  // of the run from which this one starts
  if (vae.is_preset) source.notices.push_back(notice);
}

PipelineSource pipeline_of_run(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  const models::DenoiserSizes sizes = models::denoiser_of(shape);
  PipelineSource source = parts_of(config, sizes);
  source.model.clear();
  source.sizes = sizes;
  source.class_names = shape.task().class_names;
  require(sizes.pooled == 0, "model",
          "a model that also reads one state of a whole caption, as SDXL, Stable Diffusion 3 and FLUX do, must have a "
          "text encoder that gives it, and none is known here: got one that reads ",
          sizes.pooled, " features of it; take another model, or convert its weights with `colossal export`");
  const auto has_no_name = [](const CaptionSource& one) { return one.encoder.empty(); };
  require(!source.reads_text() ||
              (!source.captions.empty() && std::none_of(source.captions.begin(), source.captions.end(), has_no_name)),
          "model",
          "text must be the features of a text encoder, 64 (clip-text-tiny), 768 (clip-l) or 1024 (open-clip-h): got ",
          sizes.text, "; set model.text, or model.from to a pipeline that has its encoder");
  source.keys = completed(tables.as<DiffusionKeys>(kDiffusion), source.keys);
  set_autoencoder(source, tables.as<VaeKeys>(kVae).from);
  set_sampler(source);
  return source;
}

noise::SamplerOptions options_of(const PipelineSource& source, const GivenSampler& given) {
  noise::SamplerOptions options = source.sampler;
  // A spacing belongs to its sampler: another one has its own default.
  const bool is_another = !given.sampler.empty() && given.sampler != options.sampler;
  if (is_another) options.sampler = given.sampler;
  if (!given.spacing.empty() || is_another) options.spacing = given.spacing;
  options.steps = given.steps;
  options.karras = given.karras || (options.karras && noise::has_sigmas(options.sampler));
  options.eta = given.eta;
  options.strength = given.strength;
  options.target = source.keys.noise_target();
  if (source.sizes.frames > 0 && options.target == noise::Target::Flow && source.keys.shift == "auto" &&
      given.size.tokens > 0)
    options.shift = noise::automatic_shift(source.sizes.shift, given.size);
  if (source.sizes.outputs > source.sizes.channels) options.variance = noise::Variance::Learned;
  return options;
}

noise::SamplerPlan plan_of(const PipelineSource& source, const GivenSampler& given) {
  return noise::plan_sampler(noise::NoiseLevels(source.keys.levels()), options_of(source, given));
}

void check_encoders(const PipelineSource& source, const std::vector<models::TextEncoderSizes>& encoders) {
  std::vector<tensor::Batch> read;
  for (size_t i = 0; i < encoders.size(); ++i) {
    const models::CaptionPart& part = source.sizes.captions.at(i);
    const at::TensorOptions meta = at::TensorOptions(at::kMeta).dtype(at::kFloat);
    const int64_t pooled = encoders[i].projection > 0 ? encoders[i].projection : encoders[i].features;
    at::Tensor text, whole;
    if (part.states != models::CaptionStates::None) text = at::empty({1, part.tokens, encoders[i].features}, meta);
    if (part.pooled) whole = at::empty({1, pooled}, meta);
    read.push_back(models::caption_batch(text, whole));
  }
  models::joined_captions(source.sizes, read);
}

text::Captions captions_for(const CaptionSource& source, const models::CaptionPart& part,
                            const models::ModelShape& encoder) {
  text::Captions captions = text::make_captions(source.tokenizer, part.tokens);
  require(captions.vocabulary() <= encoder.vocabulary, "text encoder", "the tokenizer ", source.tokenizer,
          " must have at most the ", encoder.vocabulary, " tokens (vocab_size) of the text encoder ", source.encoder,
          ": got ", captions.vocabulary(), "; take the tokenizer that belongs to the encoder");
  return captions;
}

CaptionIds caption_ids(const text::Captions& captions, const std::string& caption) {
  const text::Caption tokens = captions(caption);
  const at::Tensor ids = at::tensor(tokens.ids, at::kLong).unsqueeze(0);
  return {.ids = ids,
          .mask = at::arange(ids.size(1), at::kLong).lt(tokens.length).to(at::kLong).unsqueeze(0),
          .warning = captions.warning(tokens)};
}

}  // namespace colossal::run
