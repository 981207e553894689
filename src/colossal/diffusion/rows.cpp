#include "colossal/diffusion/rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/agreement.h"
#include "colossal/diffusion/adversarial_rule.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/diffusion/drawn_class.h"
#include "colossal/diffusion/encoding_rule.h"
#include "colossal/diffusion/latent_filling.h"
#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/diffusion/sample_clip.h"
#include "colossal/diffusion/told_captions.h"
#include "colossal/models/class_names.h"
#include "colossal/models/conditions.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/drawn_clips.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/latents_of_run.h"
#include "colossal/run/objectives/reconstruction/reconstruction_keys.h"
#include "colossal/run/objectives/text_data.h"
#include "colossal/run/resolve_shape.h"
#include "colossal/train/engine.h"
#include "colossal/train/rank_inputs.h"
#include "colossal/train/trainer.h"

namespace colossal::diffusion {
namespace {

constexpr int64_t kSamples = 4, kSteps = 25;

/// Returns the pipeline with which a run draws samples, of the size of its data, without a text encoder that the model
/// has within; nothing if it draws none.
std::optional<run::PipelineSource> pipeline_of_samples(train::Trainer& trainer) {
  const auto* objective = dynamic_cast<const run::DiffusionObjective*>(&trainer.engine().objective());
  if (objective == nullptr || trainer.config().training.sample_tokens == 0) return std::nullopt;
  run::PipelineSource source = objective->pipeline();
  if (source.reads_text() && trainer.config().training.sample_prompt.empty()) return std::nullopt;
  if (objective->trains_text_encoder())
    for (run::CaptionSource& one : source.captions) one.encoder.clear();
  source.image_encoder = objective->image_encoder();
  // Samples have the size of the data, which may differ from that of the model.
  const data::PictureSize size = run::size_of_pictures(objective->data_keys(), source);
  source.sizes.height = size.height / source.factor;
  source.sizes.width = size.width / source.factor;
  return source;
}

/// Returns the memory of the parts that samples_of() loads, and of decoding a picture.
std::vector<train::MemoryNeed> needs_of_samples(train::Trainer& trainer, const run::Program& program) {
  const auto pipeline = pipeline_of_samples(trainer);
  try {
    return pipeline ? needs_of_parts(*pipeline, program) : std::vector<train::MemoryNeed>();
  } catch (const std::exception&) {  // a line of the log ends no run
    return {};
  }
}

/// Adds a control picture [3, H, W] to what a row is told; nothing to an empty batch.
void tell_control(const at::Tensor& control, tensor::Batch& told) {
  if (told.rows() > 0) told.add(models::kControl, models::condition_field(control.unsqueeze(0)));
}

tensor::Batch repeated_row(const tensor::Batch& row, int64_t count) {
  return tensor::joined_rows(std::vector(static_cast<size_t>(count), row));
}

/// Adds the embedding of the first picture to what a row is told, and zeros to what guidance leads away from.
void tell_first_picture(const run::Config& config, const run::DiffusionObjective& objective, const PipelineParts& parts,
                        tensor::Batch& told, tensor::Batch& untold) {
  if (objective.image_encoder().path.empty()) return;
  const std::string bytes = run::first_picture(config, objective.data_keys(), objective.pipeline());
  tell_embedding(parts.embedding(bytes, "the first picture of " + config.data.path), told, untold);
}

/// Draws training.sample_prompt, or the first class, four times; a clip once, of the longest length of the run.
std::vector<run::Sample> drawn_samples(train::Trainer& trainer, const run::Program& program) {
  const auto pipeline = pipeline_of_samples(trainer);
  if (!pipeline) return {};
  const run::Config& config = trainer.config();
  const run::PipelineSource& source = *pipeline;
  const auto& objective = dynamic_cast<const run::DiffusionObjective&>(trainer.engine().objective());
  const std::string& prompt = config.training.sample_prompt;
  PipelineParts parts(source, trainer.engine().mesh().world(), trainer.engine().parameters().options().device, {},
                      program);
  if (source.sizes.frames > 0) {
    // Ranks that share frames (dsp) cannot share a single picture.
    const std::vector<int64_t>& lengths = objective.data_keys().frames;
    return {sample_clip(trainer.engine(), source, parts,
                        {.prompt = prompt,
                         .seed = static_cast<uint64_t>(config.training.seed),
                         .steps = kSteps,
                         .stops = [&trainer] { return trainer.stops(); },
                         .fps = objective.data_keys().fps,
                         .frames = lengths.empty() || lengths.back() == 1 ? 0 : lengths.back()})};
  }
  std::string title = prompt, name = "prompt";
  tensor::Batch told, untold;
  int64_t drawn = 0;
  if (source.reads_text()) {
    told = parts.told(prompt, /*clip_skip=*/0);
    if (run::has_second_pass(source, source.keys.guidance)) untold = parts.told("", /*clip_skip=*/0);
  } else {
    if (!prompt.empty()) drawn = drawn_class(prompt, source.class_names, source.sizes.classes);
    title = class_title(drawn, source.class_names);
    name = concat("class-", drawn);
  }
  if (objective.trains_control())
    for (tensor::Batch* one : {&told, &untold})
      tell_control(run::first_control(config, objective.data_keys(), source), *one);
  tell_first_picture(config, objective, parts, told, untold);
  const int64_t at_once = parts_of_drawing(source, {}).at_once;
  std::vector<run::Sample> samples;
  for (int64_t first = 0; first < kSamples; first += at_once) {
    const int64_t count = std::min(at_once, kSamples - first);
    Drawing drawing{.told = repeated_row(told, count),
                    .untold = repeated_row(untold, count),
                    .size = {source.sizes.height, source.sizes.width},
                    .guidance = source.keys.guidance,
                    .factor = source.factor,
                    .stop_requested = [&trainer] { return trainer.stops(); }};
    if (!source.reads_text()) drawing.classes.assign(count, drawn);
    for (int64_t i = 0; i < count; ++i)
      drawing.seeds.push_back(static_cast<uint64_t>(config.training.seed + first + i));
    const at::Tensor pictures =
        parts.pixels(draw(trainer.engine().distributed(), run::plan_of(source, {.steps = kSteps}), drawing),
                     /*in_tiles=*/false, &trainer.engine().mesh().all());
    for (int64_t i = 0; i < count; ++i)
      samples.push_back(run::picture_sample(title, concat(name, "-", first + i + 1), picture_of(pictures[i])));
  }
  return samples;
}

/// Returns the samples; none if the run is stopped meanwhile.
std::vector<run::Sample> samples_of(train::Trainer& trainer, const run::Program& program) {
  if (trainer.stops()) return {};  // before the other parts of the pipeline are loaded
  try {
    return drawn_samples(trainer, program);
  } catch (const StoppedDrawing&) {
    return {};
  }
}

/// Chooses the clips that a run uses, as it will when it opens its data.
void prepare_clips(run::DrawnPictures& drawn, const run::LatentCache& cache, const run::Config& config,
                   const run::DrawnDataKeys& keys, const LatentWork& work, bool is_first) {
  if (work.on_error == data::OnError::Skip) {
    run::skip_broken(drawn, run::encoded_in(cache, /*mirror=*/false));
    if (is_first) cache.add(run::marks_of_decoded(drawn, cache));
  }
  run::check_clip_keys(keys, work.pipeline);
  const data::ClipLengths lengths = run::lengths_of_clips(keys, work.pipeline, config.replica_rows(0));
  run::choose_clips(drawn, lengths, static_cast<uint64_t>(config.training.seed));
  if (work.pipeline.has_latents()) run::add_parts(drawn, config.training.steps);
}

/// Encodes the pictures, clips and captions of a run that does not encode them in each step, before its models exist.
void prepare(comm::World& world, const run::Config& config, const run::OwnTables& tables, const run::Preparation& how,
             const run::Program& program) {
  std::unique_ptr<run::LatentCache> cache;
  std::vector<std::unique_ptr<run::DrawnPictures>> lists;
  LatentWork work;
  const auto everyone = train::group_of_all(world);
  comm::agree(*everyone, at::kCPU, [&] {
    run::check_text_encoder(config);
    const models::ModelShape shape = run::resolve_shape(config.model, program);
    work.pipeline = run::pipeline_of_run(config, tables, shape);
    const auto keys = tables.data<run::DrawnDataKeys>();
    const bool has_latents = work.pipeline.has_latents();
    if ((!has_latents && !work.pipeline.reads_text()) || keys.encodes_in_step()) return;
    const run::LatentCacheKey key = run::key_of_latents(config, work.pipeline);
    cache = std::make_unique<run::LatentCache>(run::folder_of_latents(config, keys), key);
    lists.push_back(std::make_unique<run::DrawnPictures>(run::open_drawn_pictures(config, keys, work.pipeline)));
    // The model refuses other classes, but only when hours may have gone into the latents.
    if (!work.pipeline.reads_text())
      models::check_class_names({.count = work.pipeline.sizes.classes, .names = lists.front()->class_names});
    work.on_error = run::on_error_of(config.data);
    if (work.pipeline.sizes.frames > 0) prepare_clips(*lists.front(), *cache, config, keys, work, world.rank() == 0);
    if (!keys.prior.empty()) {
      // The buckets of the prior follow from the pictures that are learned.
      const auto is_known = run::encoded_in(*cache, keys.mirror);
      if (work.on_error == data::OnError::Skip) run::skip_broken(*lists.front(), is_known);
      lists.push_back(
          std::make_unique<run::DrawnPictures>(run::open_prior(config, keys, work.pipeline, *lists.front(), is_known)));
    }
    for (const auto& list : lists) work.pictures.push_back(list.get());
    if (!run::trains_text_encoder(config)) work.captions = run::captions_of(config, work.pipeline, work.pictures);
    if (!has_latents) work.pictures.clear();  // pixels are not encoded
    if (run::trains_image_prompt(config))
      work.image_encoder =
          run::trained_image_encoder(run::adapter_keys(config), static_cast<uint64_t>(config.training.seed));
    work.mirror = keys.mirror;
    if (key.dtype == "F64") work.dtype = at::kDouble;
  });
  if (!cache) return;
  fill_latents(world, *cache, work, comm::choose_device(config.run.device, world.local_rank(), *how.devices), program);
}

}  // namespace

run::Program with_diffusion(run::Program program) {
  const auto known = std::make_shared<const run::Program>(program);
  for (const run::ObjectiveRow& one : program.objectives.rows()) {
    const bool reconstructs = !one.tables.empty() && one.tables.front().keys.holds<run::ReconstructionKeys>();
    if (reconstructs && !one.step_rule) program.objectives.at(one.name).step_rule = make_adversarial_rule;
    if (one.samples || one.tables.empty() || !one.tables.front().keys.holds<run::DiffusionKeys>()) continue;
    program.objectives.at(one.name).samples = [known](train::Trainer& trainer, const run::ShowText&) {
      return samples_of(trainer, *known);
    };
    program.objectives.at(one.name).sample_needs = [known](train::Trainer& trainer) {
      return needs_of_samples(trainer, *known);
    };
    if (!one.step_rule) program.objectives.at(one.name).step_rule = make_encoding_rule;
    program.objectives.at(one.name).prepare = [known](comm::World& world, const run::Config& config,
                                                      const run::OwnTables& tables, const run::Preparation& how) {
      prepare(world, config, tables, how, *known);
    };
  }
  return program;
}

}  // namespace colossal::diffusion
