#include "colossal/run/objectives/diffusion/diffusion_objective.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/data/pictures/bucket_reader.h"
#include "colossal/data/pictures/folder.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/models/caption_parts.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/clip_text_words.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/run/control_source.h"
#include "colossal/run/learned_words.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/built_in.h"
#include "colossal/run/objectives/class_pictures.h"
#include "colossal/run/objectives/diffusion/drawn_clips.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/latent_cache.h"
#include "colossal/run/objectives/diffusion/latent_samples.h"
#include "colossal/run/objectives/diffusion/latents_of_run.h"
#include "colossal/run/objectives/diffusion/prompt_pictures.h"
#include "colossal/run/objectives/diffusion/variance_bound.h"
#include "colossal/run/objectives/text_data.h"
#include "colossal/run/program.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

constexpr int64_t kMaxThreads = 4;  // that noise latents, which are there already

/// Returns true for a model that reads the two text encoders of SDXL.
bool is_xl(const PipelineSource& pipeline) { return pipeline.sizes.sizes > 0 && pipeline.captions.size() == 2; }

/// Returns the tokens of a caption for each text encoder.
std::vector<int64_t> tokens_of(const models::DenoiserSizes& sizes) {
  std::vector<int64_t> tokens;
  for (const models::CaptionPart& part : sizes.captions) tokens.push_back(part.tokens);
  return tokens;
}

/// Returns the mean of each row. Frames of clips that are given, int64 [B, frames], leave it; undefined = none are.
at::Tensor mean_of_rows(const at::Tensor& errors, const at::Tensor& given) {
  if (errors.dim() == 4) return errors.mean({1, 2, 3});
  const at::Tensor of_frames = errors.mean({1, 3, 4});
  if (!given.defined()) return of_frames.mean(1);
  const at::Tensor counts = given.to(errors.device()).eq(0).to(errors.scalar_type());
  return (of_frames * counts).sum(1) / counts.sum(1).clamp_min(1);  // a row of given frames alone has no loss
}

}  // namespace

DiffusionObjective::DiffusionObjective(const Config& config, const OwnTables& tables, const models::ModelShape& shape)
    : pipeline_(pipeline_of_run(config, tables, shape)),
      trains_text_encoder_(run::trains_text_encoder(config)),
      data_keys_(tables.data<DrawnDataKeys>()) {
  const models::DenoiserSizes& sizes = pipeline_.sizes;
  require(sizes.beside == 0, "objective", "a model that reads a mask draws, but does not learn: got one with ",
          sizes.beside, " channels beside the noised ones; train a UNet with as many channels as outputs");
  const data::PictureSize size = size_of_pictures(data_keys_, pipeline_);
  if (run::trains_control(config)) control_ = adapter_keys(config).from;
  if (run::trains_image_prompt(config)) {
    image_prompt_ = adapter_keys(config);
    image_encoder_ = trained_image_encoder(image_prompt_, static_cast<uint64_t>(config.training.seed));
  }
  if (run::learns_words(config)) take_words(with_vectors(config, adapter_keys(config)));
  check_clip_keys(data_keys_, pipeline_);
  const bool encodes = data_keys_.encodes_in_step();
  options_ = {.keys = pipeline_.keys,
              .channels = sizes.channels,
              .height = size.height / pipeline_.factor,
              .width = size.width / pipeline_.factor,
              .null_class = sizes.classes,
              .text = sizes.text,
              .reads_ids = trains_text_encoder_,
              .has_pictures = sizes.outputs > sizes.channels,
              .mirror = data_keys_.mirror,
              .unencoded = pipeline_.has_latents() && encodes ? pipeline_.factor : 0,
              .encodes_captions = pipeline_.reads_text() && encodes && !trains_text_encoder_,
              .tokens = sizes.text_tokens,
              .masks_text = sizes.masks_text,
              .noises_given = sizes.noises_given,
              .pooled = trains_text_encoder_ ? 0 : sizes.pooled,  // else the model computes it
              .id_tokens = tokens_of(sizes),
              .shift = sizes.shift,
              .factor = pipeline_.factor,
              .patch = sizes.patch};
  check_control();
  check_image_prompt();
  const bool has_part = control_ || !image_encoder_.path.empty();
  options_.conditions = models::conditions_of(has_part ? with_parts(shape) : shape);
  if (sizes.frames > 0) {
    lengths_ = lengths_of_clips(data_keys_, pipeline_, config.replica_rows(0));
    options_.pixel_frames = lengths_.frames[data::largest_length(lengths_)];
    options_.frames = models::latent_frames(autoencoder_sizes(pipeline_), options_.pixel_frames);
  }
  require(sizes.frames > 0 || options_.keys.given_frames == GivenFrames(), "diffusion",
          "given_frames needs a model of clips: got one of pictures; remove given_frames");
  require(!options_.has_pictures || options_.keys.target == "epsilon", "diffusion",
          "a model that predicts a variance learns target = \"epsilon\": got ", options_.keys.target,
          "; set model.learned_sigma = false");
  require(data_keys_.prior.empty() || config.training.batch_size % 2 == 0, "data",
          "half of each batch comes from prior, so training.batch_size must be even: got ", config.training.batch_size);
  require(data_keys_.prior.empty() || pipeline_.has_latents(), "data",
          "prior needs a model of latents: got one of pixels; leave it out");
}

/// Checks that the model can learn a ControlNet, if the run trains one.
void DiffusionObjective::check_control() const {
  if (!control_) return;
  require(pipeline_.has_latents() && pipeline_.reads_text(), "adapter",
          "adapter.kind = \"controlnet\" needs a unet that draws latents from captions: got another model; set "
          "adapter.kind = \"lora\", or name another model");
  require(data_keys_.prior.empty(), "data",
          "prior must be empty with adapter.kind = \"controlnet\", because its pictures have no control pictures: got ",
          data_keys_.prior);
}

/// Checks that the model can learn an IP-adapter, if the run trains one.
void DiffusionObjective::check_image_prompt() const {
  if (image_encoder_.path.empty()) return;
  require(pipeline_.has_latents() && pipeline_.reads_text(), "adapter",
          "adapter.kind = \"ip-adapter\" needs a unet that draws latents from captions: got another model; set "
          "adapter.kind = \"lora\", or name another model");
  require(
      !data_keys_.encodes_in_step(), "data",
      "latents must be \"auto\" or a folder with adapter.kind = \"ip-adapter\", where the embeddings of pictures are "
      "stored: got \"",
      data_keys_.latents, "\"; set data.latents = \"auto\"");
}

void DiffusionObjective::take_words(const LowRankKeys& keys) {
  require(pipeline_.reads_text(), "adapter",
          "adapter.kind = \"textual-inversion\" needs a model that draws what captions say: got one of classes");
  require(pipeline_.captions.size() == 1 || is_xl(pipeline_), "adapter",
          "adapter.kind = \"textual-inversion\" needs a model that reads one text encoder, or SDXL: got one with ",
          pipeline_.captions.size(), "; name another model, or set adapter.kind = \"lora\"");
  const std::vector<LearnedWord> words = words_of(keys);
  for (CaptionSource& source : pipeline_.captions) {
    source.words = caption_words(words, keys.rank);
    source.first_word = find_source(source.encoder, built_in()).shape.vocabulary;
  }
  word_rows_ = keys.rank * static_cast<int64_t>(words.size());
}

void DiffusionObjective::check_words(const DrawnPictures& pictures) const {
  const CaptionSource& source = pipeline_.captions.front();
  const text::Captions captions =
      captions_for(source, pipeline_.sizes.captions.front(), find_source(source.encoder, built_in()).shape);
  std::vector<bool> is_used(static_cast<size_t>(word_rows_));
  for (const int64_t index : pictures.training)
    for (const int64_t id : captions(pictures.files->at(index).caption).ids)
      if (id >= source.first_word) is_used[static_cast<size_t>(id - source.first_word)] = true;
  int64_t row = 0;
  for (const text::CaptionWord& one : source.words) {
    require(is_used[static_cast<size_t>(row)], "adapter",
            "each word of adapter.targets must be in a caption: got none ", "with ", one.word,
            "; write captions such as \"a photo of ", one.word, "\"");
    row += one.rows;
  }
}

models::ModelShape DiffusionObjective::with_parts(models::ModelShape shape) const {
  if (control_) {
    models::OwnControl control = trained_control(*control_, shape, pipeline_.factor);
    return models::with_control(std::move(shape), std::move(control));
  }
  if (!image_encoder_.path.empty()) {
    const models::OwnImagePrompt prompt = trained_image_prompt(image_prompt_, shape);
    return models::with_image_prompt(std::move(shape), prompt);
  }
  if (!trains_text_encoder_ || !pipeline_.reads_text()) return shape;
  require((pipeline_.captions.size() == 1 && pipeline_.sizes.pooled == 0) || is_xl(pipeline_), "adapter",
          "adapter.text_encoder needs a model that reads the states of one text encoder, or SDXL: got one with ",
          pipeline_.captions.size(), "; leave it out, and only the model that draws learns");
  const auto text_of = [this](const CaptionSource& source) {
    models::ModelShape text = find_source(source.encoder, built_in()).shape;
    return word_rows_ > 0 ? models::with_learned_words(std::move(text), word_rows_) : text;
  };
  models::ModelShape first = text_of(pipeline_.captions.front());
  if (!is_xl(pipeline_)) return models::with_text_encoder(std::move(shape), first);
  return models::with_text_encoders(std::move(shape), std::move(first), text_of(pipeline_.captions.back()),
                                    pipeline_.zeros_for_empty);
}

OpenedData DiffusionObjective::open(const DataRequest& request) const {
  check_unused_data_keys(request.config.data, {.images = true, .records = pipeline_.reads_text()});
  const bool are_classes = !pipeline_.has_latents() && !pipeline_.reads_text() && pipeline_.sizes.frames == 0;
  OpenedData data = are_classes ? open_pixels(request) : open_drawn(request);
  data.notices.insert(data.notices.begin(), pipeline_.notices.begin(), pipeline_.notices.end());
  return data;
}

OpenedData DiffusionObjective::open_pixels(const DataRequest& request) const {
  const Config& config = request.config;
  const models::DenoiserSizes& sizes = pipeline_.sizes;
  const bool are_there = data::parse_builtin_shapes(config.data.path) || data::PictureFolder::is_one(config.data.path);
  require(are_there, "data",
          "path must be \"builtin-shapes\", or a folder with a folder of pictures for each class: got ",
          config.data.path);
  // Pixels of [0, 1] become those of [-1, 1].
  OpenedData data = open_class_pictures(config, {sizes.classes, sizes.channels, pipeline_.class_names},
                                        {.width = sizes.width,
                                         .height = sizes.height,
                                         .mean = std::vector<double>(3, 0.5),
                                         .deviation = std::vector<double>(3, 0.5),
                                         .middle = 1,
                                         .on_error = on_error_of(config.data)});
  data.training = std::make_shared<NoisedSamples>(std::move(data.training), options_);
  if (data.held_out) data.held_out = std::make_shared<NoisedSamples>(std::move(data.held_out), held_out_options());
  data.threads = static_cast<int>(config.data.threads);
  return data;
}

DiffusionObjective::Drawn DiffusionObjective::open_pictures(const Config& config) const {
  Drawn drawn;
  // A step may encode its rows, and pixels need no encoder.
  if (!data_keys_.encodes_in_step() && (pipeline_.has_latents() || pipeline_.reads_text()))
    drawn.cache =
        std::make_shared<const LatentCache>(folder_of_latents(config, data_keys_), key_of_latents(config, pipeline_));
  drawn.pictures = std::make_shared<DrawnPictures>(open_drawn_pictures(config, data_keys_, pipeline_));
  if (word_rows_ > 0) check_words(*drawn.pictures);
  if (drawn.cache) drawn.is_known = encoded_in(*drawn.cache, data_keys_.mirror);
  if (on_error_of(config.data) == data::OnError::Skip) skip_broken(*drawn.pictures, drawn.is_known);
  if (control_) check_controls(config, *drawn.pictures);
  if (pipeline_.sizes.frames > 0) {
    check_clip_batches(config, lengths_, kDiffusion);
    choose_clips(*drawn.pictures, lengths_, static_cast<uint64_t>(config.training.seed));
  }
  check_one_shape(config, *drawn.pictures, lengths_);
  return drawn;
}

LatentOptions DiffusionObjective::latent_options(bool has_cache) const {
  LatentOptions options{.noised = options_, .vae = autoencoder_sizes(pipeline_)};
  options.has_latents = pipeline_.has_latents();
  options.zeros_for_empty = pipeline_.zeros_for_empty;
  if (!image_encoder_.path.empty()) options.image_encoder = key_of_image_encoder(image_encoder_);
  if (trains_text_encoder_ || (!has_cache && pipeline_.reads_text()))
    for (size_t i = 0; i < pipeline_.captions.size(); ++i)
      options.captions.push_back(std::make_shared<const text::Captions>(
          captions_for(pipeline_.captions[i], pipeline_.sizes.captions[i],
                       find_source(pipeline_.captions[i].encoder, built_in()).shape)));
  return options;
}

OpenedData DiffusionObjective::open_drawn(const DataRequest& request) const {
  const Config& config = request.config;
  check_text_encoder(config);
  const auto [pictures, cache, is_known] = open_pictures(config);
  LatentOptions options = latent_options(cache != nullptr);
  const bool has_prior = !data_keys_.prior.empty();
  // The loss is that of the pictures plus that of the prior, each a mean over its half of the batch.
  options.weight = has_prior ? 2 : 1;
  OpenedData data{.class_names = pictures->class_names};
  const auto add_notices = [&](const DrawnPictures& drawn) {
    for (const auto& lines : {drawn.files->take_notices(), drawn.notices})
      data.notices.insert(data.notices.end(), lines.begin(), lines.end());
  };
  add_notices(*pictures);
  for (std::string& warning : caption_warnings(pipeline_, captions_of(config, pipeline_, {pictures.get()})))
    data.notices.push_back(std::move(warning));
  std::shared_ptr<const LatentSamples> prior;
  if (has_prior) {
    LatentOptions of_prior = options;
    of_prior.weight *= pipeline_.keys.prior_loss;
    const auto class_pictures =
        std::make_shared<DrawnPictures>(open_prior(config, data_keys_, pipeline_, *pictures, is_known));
    add_notices(*class_pictures);
    prior = std::make_shared<const LatentSamples>(class_pictures, cache, of_prior);
  }
  const bool decodes = !cache || !pipeline_.has_latents();
  const int64_t threads = decodes ? config.data.threads : std::min(config.data.threads, kMaxThreads);
  auto reader = std::make_unique<data::BucketReader>(
      std::make_shared<const LatentSamples>(pictures, cache, options), prior,
      data::BucketReaderOptions{.batches = batch_options(config, request.replica, threads),
                                .buckets = pictures->buckets,
                                .clips = pictures->clips});
  if (pictures->buckets.size() > 1 || pictures->clips) data.facts = reader->counts();
  data.stream = std::move(reader);
  if (!pictures->held_out.empty()) {
    options.noised = held_out_options();
    options.weight = 1;
    const data::BucketShape shape{size_of_pictures(data_keys_, pipeline_), pictures->held_out_frames};
    data.held_out =
        std::make_shared<SamplesOfSize>(std::make_shared<const LatentSamples>(pictures, cache, options), shape);
    data.threads = static_cast<int>(threads);
  }
  return data;
}

int64_t DiffusionObjective::tokens(const tensor::Batch& batch, const models::ModelShape&) const {
  const at::Tensor& noised = batch.at(kNoised);
  const auto patches = [&](int64_t side) { return (side + pipeline_.sizes.patch - 1) / pipeline_.sizes.patch; };
  const int64_t frames = noised.dim() == 5 ? noised.size(2) : 1;
  return batch.rows() * frames * patches(noised.size(-2)) * patches(noised.size(-1));
}

NoisedOptions DiffusionObjective::held_out_options() const {
  NoisedOptions options = options_;
  options.is_held_out = true;
  return options;
}

tensor::Batch DiffusionObjective::example(int64_t rows) const { return noised_batch(rows, options_, at::kMeta); }

std::vector<std::string> DiffusionObjective::added_fields() const {
  std::vector<std::string> added;
  if (!options_.encodes_captions) return added;
  added.emplace_back(kText);
  if (options_.pooled > 0) added.emplace_back(kPooled);
  return added;
}

void DiffusionObjective::check(const tensor::Batch& batch) const {
  const at::Tensor& noised = batch.at(kNoised);
  const models::DenoiserSizes& sizes = pipeline_.sizes;
  const bool takes_any = sizes.classes == 0;
  const ops::PictureSize size = models::picture_size(batch);
  require(noised.dim() == (sizes.frames > 0 ? 5 : 4) && noised.size(1) == sizes.channels &&
              (takes_any || size == ops::PictureSize{sizes.height, sizes.width}),
          "data", "noised must be [B, ", sizes.channels, sizes.frames > 0 ? ", frames, " : ", ", sizes.height, ", ",
          sizes.width, "]: got ", noised.sizes());
  require(batch.at(kTargets).sizes() == noised.sizes(), "data", "targets must have the sizes of noised, ",
          noised.sizes(), ": got ", batch.at(kTargets).sizes());
  const at::Tensor given = batch.find(kGiven);
  require(!given.defined() || given.sizes() == at::IntArrayRef({noised.size(0), noised.size(2)}), "data",
          "given must be [B, frames]: got ", given.defined() ? given.sizes() : at::IntArrayRef());
  const at::Tensor shown = batch.find(kShown);
  require(!shown.defined() || shown.sizes() == noised.sizes(), "data", "shown must have the sizes of noised, ",
          noised.sizes(), ": got ", shown.defined() ? shown.sizes() : at::IntArrayRef());
  for (const char* name : {kTimes, kWeights, kLevels})
    require(batch.at(name).dim() == 1, "data", name, " must be [B]: got ", batch.at(name).sizes());
  for (const models::Condition& one : options_.conditions) {
    const at::Tensor& told = batch.at(one.name);
    const at::Tensor wanted = one.zeros(batch.rows(), size, at::kMeta).tensor;
    require(told.sizes() == wanted.sizes(), "data", one.name, " must have the sizes ", wanted.sizes(), ": got ",
            told.sizes());
  }
  if (trains_text_encoder_) {
    const at::Tensor& ids = batch.at(kIds);
    require(ids.dim() == 2 && ids.scalar_type() == at::kLong, "data", "ids must be int64 [B, tokens]: got ",
            ids.sizes());
    return;
  }
  if (sizes.text > 0) {
    const at::Tensor& text = batch.at(kText);
    require(text.dim() == 3 && text.size(2) == sizes.text, "data", "text must be [B, tokens, ", sizes.text, "]: got ",
            text.sizes());
    return;
  }
  const at::Tensor& classes = batch.at(kClasses);
  if (!classes.device().is_cpu() || classes.numel() == 0) return;
  const int64_t least = classes.min().item<int64_t>(), most = classes.max().item<int64_t>();
  require(least >= 0 && most <= sizes.classes, "data", "classes must be in [0, ", sizes.classes, "]: got ",
          least < 0 ? least : most, "; set model.classes");
}

double DiffusionObjective::weight(const tensor::Batch& batch) const {
  const at::Tensor& levels = batch.at(kLevels);
  return levels.is_meta() ? static_cast<double>(batch.rows()) : (levels >= 0).sum().item<double>();
}

at::Tensor DiffusionObjective::losses(const models::Model& model, const models::States& end,
                                      const nn::ForwardContext& step) const {
  const at::Tensor predicted = models::predicted_picture(model.shape, end.at(0), *step.batch);
  const auto field = [&](const char* name) {
    return step.batch->at(name).to(predicted.device(), /*non_blocking=*/true).to(predicted.scalar_type());
  };
  const int64_t channels = pipeline_.sizes.channels;
  const at::Tensor wanted = field(kTargets), mean = predicted.narrow(1, 0, channels);
  const at::Tensor counts = (field(kLevels) >= 0).to(predicted.scalar_type());
  at::Tensor losses = mean_of_rows((mean - wanted).square(), step.batch->find(kGiven)) * field(kWeights);
  if (options_.has_pictures) {
    const VarianceBound bound(options_.keys.levels());
    losses = losses + bound.of_rows({.pictures = field(kPictures),
                                     .noised = field(kNoised),
                                     .times = field(kTimes),
                                     .noise = mean.detach(),
                                     .variance = predicted.narrow(1, channels, channels)});
  }
  return losses * counts;
}

at::Tensor DiffusionObjective::loss(const models::Model& model, const models::States& end,
                                    const nn::ForwardContext& step) const {
  return losses(model, end, step).sum();
}

at::Tensor DiffusionObjective::evaluate(const models::Model& model, const models::States& end,
                                        const nn::ForwardContext& step) const {
  const at::Tensor of_rows = losses(model, end, step);
  const at::Tensor quarter = (step.batch->at(kLevels).to(of_rows.device()) * kQuarters).floor();
  std::vector<at::Tensor> sums{of_rows.sum()};
  for (int i = 0; i < kQuarters; ++i) {
    const at::Tensor is_in = (quarter == i).to(of_rows.scalar_type());
    sums.push_back((of_rows * is_in).sum());
    sums.push_back(is_in.sum());
  }
  return at::stack(sums);
}

std::vector<Metric> DiffusionObjective::metrics(const std::vector<double>& sums, double weight) const {
  std::vector<Metric> rows = Objective::metrics(sums, weight);
  for (int i = 0; i < kQuarters; ++i) {
    const double count = sums.at(2 + 2 * static_cast<size_t>(i));
    if (count > 0)
      rows.push_back({.name = concat("eval_loss_", i + 1),
                      .value = sums.at(1 + 2 * static_cast<size_t>(i)) / count,
                      .plot = "Held-out loss by noise level",
                      .legend = concat("quarter ", i + 1, i == 0 ? ", least noise" : "")});
  }
  return rows;
}

std::unique_ptr<Objective> make_diffusion(const Config& config, const OwnTables& tables,
                                          const models::ModelShape& shape) {
  return std::make_unique<DiffusionObjective>(config, tables, shape);
}

std::vector<FurtherModel> diffusion_encoders(const Config& config, const OwnTables& tables,
                                             const models::ModelShape& shape) {
  if (!tables.data<DrawnDataKeys>().encodes_in_step()) return {};
  const PipelineSource pipeline = pipeline_of_run(config, tables, shape);
  std::vector<FurtherModel> encoders;
  const auto add = [&](const std::string& name, const std::string& from) {
    require(!find_source(from, built_in()).is_preset || pipeline.seed == static_cast<uint64_t>(config.training.seed),
            "data", "latents = \"none\" with the random weights of ", from, " needs their training.seed, ",
            pipeline.seed, ": got ", config.training.seed, "; set data.latents = \"auto\"");
    encoders.push_back({.name = name, .axes = std::vector<std::string>(), .from = from});
  };
  if (pipeline.has_latents()) {
    const bool overflows = config.precision.mode == "fp16" && pipeline.sizes.sizes > 0 &&
                           find_source(pipeline.vae, built_in()).shape.part<models::FloatRange>().exceeds_fp16;
    require(!overflows, "data", "latents = \"none\" needs an autoencoder whose numbers fit fp16: got that of SDXL, ",
            pipeline.vae, "; set data.latents = \"auto\", which encodes in fp32, or precision.mode = \"bf16\"");
    add(kVae, pipeline.vae);
  }
  if (pipeline.reads_text() && !trains_text_encoder(config))
    for (size_t i = 0; i < pipeline.captions.size(); ++i)
      add(models::caption_part_name(kTextEncoderPart, i), pipeline.captions[i].encoder);
  return encoders;
}

}  // namespace colossal::run
