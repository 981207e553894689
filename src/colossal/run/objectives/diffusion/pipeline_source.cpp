#include "colossal/run/objectives/diffusion/pipeline_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "colossal/base/article.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/model_path.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/caption_parts.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/text_encoder.h"
#include "colossal/noise/flow_times.h"
#include "colossal/run/data.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/pipeline_encoders.h"
#include "colossal/run/objectives/diffusion/pipeline_folder.h"
#include "colossal/run/objectives/diffusion/pipeline_index.h"
#include "colossal/run/objectives/diffusion/scheduler_config.h"
#include "colossal/run/stored_config.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {
namespace {

/// Returns a pipeline without text encoders and autoencoder, with the noise of the model's family.
PipelineSource without_parts(const models::DenoiserSizes& sizes) {
  PipelineSource source{.captions = std::vector<CaptionSource>(sizes.captions.size()),
                        .zeros_for_empty = sizes.sizes > 0,  // SDXL
                        .sizes = sizes};
  source.keys.target = sizes.target;
  source.keys.schedule = sizes.schedule;
  source.keys.guidance = sizes.guidance;
  source.sampler.sampler = "";  // ddim, or flow
  return source;
}

PipelineSource parts_at(const std::string& path, const models::Registry& registry, const std::string& sampler,
                        const OtherParts& other);

/// Returns the parts of what training starts from, which may lack those that are replaced; those of presets if that has
/// none.
PipelineSource parts_of(const Config& config, const models::DenoiserSizes& sizes, const OtherParts& other) {
  const std::string& from = config.model.from;
  if (has_pipeline(from)) {
    PipelineSource source = parts_at(from, models::built_in(), "", other);
    const bool has_encoders = source.reads_text() && other.text_encoder.empty();
    const char* parts = source.has_latents() && has_encoders ? "autoencoder and the text encoder"
                        : source.has_latents()               ? "autoencoder"
                        : has_encoders                       ? "text encoder"
                                                             : "";
    if (*parts)
      source.notices.push_back(concat("the run uses the ", parts, " of ", from, ": keep it as long as the run draws"));
    return source;
  }
  if (is_run(from)) {
    // The parts are where the run found them, and not in its folder, as its own model is (stored_config()).
    const ResolvedModel model = resolve_model(read_config<Config>(RunFolder(from).config()), built_in());
    if (const auto* objective = dynamic_cast<const DiffusionObjective*>(model.objective.objective.get()))
      return objective->pipeline();
  }
  PipelineSource source = without_parts(sizes);
  source.vae = sizes.vae;
  source.seed = static_cast<uint64_t>(config.training.seed);
  for (size_t i = 0; i < sizes.captions.size(); ++i) source.captions[i] = {sizes.captions[i].preset, "bytes"};
  return source;
}

/// Returns the shift of times for pictures or clips of a size.
double shift_of(const PipelineSource& source, const GivenSampler& given) {
  const models::DenoiserSizes& sizes = source.sizes;
  const ops::PictureSize cells = given.cells.pixels() > 0 ? given.cells : ops::PictureSize{sizes.height, sizes.width};
  const auto patches = [&](int64_t side) { return (side + sizes.patch - 1) / sizes.patch; };
  const noise::DrawnSize drawn{.pixels = static_cast<double>(source.factor * source.factor * cells.pixels()),
                               .frames = given.frames,
                               .tokens = patches(cells.height) * patches(cells.width)};
  return source.keys.flow(noise::automatic_shift(sizes.shift, drawn)).shift;
}

/// Sets the sampler that draws if nobody names one.
void set_sampler(PipelineSource& source) {
  const bool is_flow = source.keys.noise_target() == noise::Target::Flow;
  if (source.sampler.sampler.empty() || is_flow != (source.sampler.sampler == "flow")) {
    source.sampler = {.sampler = is_flow ? "flow" : "ddim"};
    if (is_flow) source.sampler.spacing = noise::automatic_spacing(source.sizes.shift);
  }
  if (is_flow) source.sampler.shift = shift_of(source, {});
  source.sampler.target = source.keys.noise_target();
  if (!source.has_latents()) source.sampler.clip = 1;  // pixels are in [-1, 1]
}

/// Returns the autoencoder of a folder with a PipelineIndex.
std::string vae_of_index(const std::string& path) {
  require(read_pipeline_index(path).has(kVaePart), "vae", path,
          " has no autoencoder, because its model draws pixels: ", "got it as from; name another one");
  return concat(path, "/", kVaePart);
}

/// Returns the pipeline of a folder with a PipelineIndex.
PipelineSource pipeline_of_clips(const std::string& path, const models::Registry& registry) {
  const PipelineIndex index = read_pipeline_index(path);
  const models::ModelShape shape = registry.shape_of(checkpoint::read_config(path));
  PipelineSource source = without_parts(models::denoiser_of(shape));
  require(source.sizes.frames > 0, "pipeline", path, " must have a model of clips: got one that ",
          shape.task().purpose());
  source.model = path;
  source.has_two_axes = shape.part<models::AttentionAxes>().two;
  source.seed = static_cast<uint64_t>(index.seed);
  source.sizes.frames = index.frames;
  source.sizes.height = index.height;
  source.sizes.width = index.width;
  DiffusionKeys keys = index.diffusion;
  if (keys.noise_target() == noise::Target::Flow) keys.schedule.clear();  // it has no effect
  source.keys = completed(keys, source.keys);
  if (source.reads_text()) {
    source.captions = captions_of_index(path, source.sizes);
    check_found_encoders(source);
  }
  set_autoencoder(source, index.has(kVaePart) ? path : "none");
  set_sampler(source);
  return source;
}

/// Returns the pipeline in a folder or file, without parts that are replaced and that it lacks.
PipelineSource parts_in_folder(const std::string& path, const models::Registry& registry, const std::string& sampler,
                               const OtherParts& other) {
  std::vector<std::string> replaced;
  if (!other.vae.empty()) replaced.emplace_back(kVaePart);
  if (!other.text_encoder.empty()) replaced.emplace_back(kTextEncoderPart);
  const PipelineFolder folder = read_pipeline(path, replaced);
  const auto shape_in = [&](const std::string& part) { return registry.shape_of(checkpoint::read_config(part)); };
  const SchedulerConfig scheduler =
      open_scheduler(folder.at("scheduler").folder, {.sampler = sampler, .pipeline = folder.class_name});
  PipelineSource source{.model = folder.denoiser().folder,
                        .sizes = models::denoiser_of(shape_in(folder.denoiser().folder)),
                        .keys = scheduler.keys,
                        .sampler = scheduler.sampler,
                        .class_names = folder.class_names,
                        .notices = folder.notices};
  source.has_two_axes = shape_in(folder.denoiser().folder).part<models::AttentionAxes>().two;
  source.keys.guidance = source.sizes.guidance;
  if (source.keys.schedule.empty()) source.keys.schedule = source.sizes.schedule;  // a flow has none
  require(source.keys.noise_target() != noise::Target::Flow || source.keys.shift != "auto" ||
              source.sizes.shift == std::string_view("flux"),
          "scheduler", "use_dynamic_shifting must be false for a pipeline that is not FLUX dev: got true in ", path,
          "; set shift in its scheduler_config.json");
  const PipelinePart* vae = folder.find("vae");
  require(vae != nullptr || source.sizes.channels == 3 || !other.vae.empty(), "model", "the pipeline ", path,
          " must have a vae, because its model draws latents of ", source.sizes.channels,
          " channels: got none; name one with --vae, or vae.from of a run");
  if (vae != nullptr && other.vae.empty()) {
    const models::AutoencoderSizes sizes = models::autoencoder_of(shape_in(vae->folder));
    require(sizes.channels == source.sizes.channels, "model", "the vae of the pipeline ", path,
            " must have latents of ", source.sizes.channels, " channels, which its model draws: got ", sizes.channels);
    source.vae = vae->folder;
    source.factor = sizes.factor;
  }
  if (!source.reads_text()) return source;
  source.zeros_for_empty = folder.zeros_for_empty;
  take_encoders(source, folder, !other.text_encoder.empty());
  if (!other.text_encoder.empty()) return source;
  std::vector<models::TextEncoderSizes> encoders;
  for (const CaptionSource& one : source.captions) encoders.push_back(models::text_encoder_of(shape_in(one.encoder)));
  try {
    check_encoders(source, encoders);
  } catch (const Error& error) {
    throw Error("model", concat("the parts of the pipeline ", path, " must fit each other: ", error.message()));
  }
  return source;
}

/// Does the same for a folder with a PipelineIndex, too.
PipelineSource parts_at(const std::string& path, const models::Registry& registry, const std::string& sampler,
                        const OtherParts& other) {
  if (has_pipeline_index(path)) return pipeline_of_clips(path, registry);
  return parts_in_folder(path, registry, sampler, other);
}

}  // namespace

bool has_pipeline(const std::string& path) {
  return is_pipeline(path) || has_pipeline_index(path) || checkpoint::is_ldm_file(path);
}

PipelineSource pipeline_in_folder(const std::string& path, const models::Registry& registry, const std::string& sampler,
                                  const OtherParts& other) {
  PipelineSource source = parts_at(path, registry, sampler, other);
  replace_parts(source, other.vae, other.text_encoder);
  return source;
}

void set_autoencoder(PipelineSource& source, const std::string& from) {
  const bool is_own = !from.empty() && from != "none";
  if (from == "none") source.vae.clear();
  if (is_own)
    source.vae = has_pipeline_index(from) ? vae_of_index(from)
                 : has_pipeline(from)     ? read_pipeline(from, {kTextEncoderPart}).at(kVaePart).folder
                                          : from;
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
  const std::string &encoder = tables.as<TextEncoderKeys>(kTextEncoder).from, &vae = tables.as<VaeKeys>(kVae).from;
  PipelineSource source = parts_of(config, sizes, {.vae = vae, .text_encoder = encoder});
  source.model.clear();
  const models::DenoiserSizes of_parts = std::exchange(source.sizes, sizes);
  source.sizes.captions.resize(std::min(sizes.captions.size(), source.captions.size()));  // a folder may lack the last
  source.sizes.zero_tokens = of_parts.zero_tokens;
  source.has_two_axes = shape.part<models::AttentionAxes>().two;
  source.class_names = shape.task().class_names;
  if (!encoder.empty()) set_text_encoders(source, encoder);
  require_encoders(source);
  if (!encoder.empty()) check_found_encoders(source);
  for (const CaptionSource& one : source.captions)
    if (!config.model.from.empty() && !is_run(config.model.from) && find_source(one.encoder, built_in()).is_preset)
      source.notices.push_back(concat("the text encoder ", one.encoder,
                                      " has random weights, so captions mean nothing; set ",
                                      "text_encoder.from to the folder of a trained one"));
  source.keys = completed(tables.as<DiffusionKeys>(kDiffusion), source.keys);
  set_autoencoder(source, vae);
  check_guidance(source, source.keys.guidance, kDiffusion);
  set_sampler(source);
  return source;
}

void replace_parts(PipelineSource& source, const std::string& vae, const std::string& text_encoder) {
  if (!vae.empty()) set_autoencoder(source, vae);
  if (text_encoder.empty()) return;
  set_text_encoders(source, text_encoder);
  require_encoders(source);
  check_found_encoders(source);
}

PipelineSource pipeline_of_model(const std::string& path, const std::string& vae, const std::string& text_encoder) {
  const models::ModelShape shape = find_source(path, built_in()).shape;
  PipelineSource source = without_parts(models::denoiser_of(shape));
  source.model = path;
  source.has_two_axes = shape.part<models::AttentionAxes>().two;
  source.class_names = shape.task().class_names;
  source.keys = completed({}, source.keys);
  if (!text_encoder.empty()) set_text_encoders(source, text_encoder);
  require(!source.reads_text() || !text_encoder.empty(), "model", path,
          " reads captions, and has no text encoder: got none; name one with --text-encoder, or a pipeline");
  require(!vae.empty() || source.sizes.channels == 3, "model", path, " draws latents of ", source.sizes.channels,
          " channels, and has no autoencoder: got none; name one with --vae, or a pipeline");
  require_encoders(source);
  if (source.reads_text()) check_found_encoders(source);
  set_autoencoder(source, vae.empty() ? "none" : vae);
  set_sampler(source);
  return source;
}

bool has_second_pass(const PipelineSource& source, double guidance) {
  return guidance != 1 && !source.sizes.told_guidance;
}

void check_guidance(const PipelineSource& source, double guidance, const char* component) {
  const bool is_distilled = source.sizes.guidance == 1 && !source.sizes.told_guidance;
  require(!is_distilled || guidance == 1, component,
          "guidance must be 1 for a model that has learned to draw without it and has no input for it: got ", guidance,
          "; leave guidance out");
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
  if (options.target == noise::Target::Flow) options.shift = shift_of(source, given);
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
  const bool begins = encoder.part<models::TextEncoderSizes>().begins;
  text::Captions captions = text::make_captions(source.tokenizer, part.tokens, begins);
  require(captions.vocabulary() <= encoder.vocabulary, "text encoder", "the tokenizer ", source.tokenizer,
          " must have at most the ", encoder.vocabulary, " tokens (vocab_size) of the text encoder ", source.encoder,
          ": got ", captions.vocabulary(), "; take the tokenizer that belongs to the encoder");
  return captions.with_words(source.words, encoder.vocabulary);
}

CaptionIds caption_ids(const text::Captions& captions, const std::string& caption) {
  const text::Caption tokens = captions(caption);
  const at::Tensor ids = at::tensor(tokens.ids, at::kLong).unsqueeze(0);
  return {.ids = ids,
          .mask = at::arange(ids.size(1), at::kLong).lt(tokens.length).to(at::kLong).unsqueeze(0),
          .warning = captions.warning(tokens)};
}

}  // namespace colossal::run
