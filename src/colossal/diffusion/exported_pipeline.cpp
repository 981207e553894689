#include "colossal/diffusion/exported_pipeline.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/hugging_face/weight_folder.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/comm/agreement.h"
#include "colossal/diffusion/own_model.h"
#include "colossal/models/caption_parts.h"
#include "colossal/models/registry.h"
#include "colossal/run/external_names.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/objectives/diffusion/pipeline_folder.h"
#include "colossal/run/objectives/diffusion/pipeline_index.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"
#include "colossal/run/objectives/diffusion/scheduler_config.h"
#include "colossal/run/stored_config.h"

namespace colossal::diffusion {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = int64_t{5} << 30;

/// Returns the scheduler that draws as a run on pixels does by default.
json scheduler_of(const run::DiffusionObjective& objective) {
  const run::PipelineSource& source = objective.pipeline();
  run::DiffusionKeys keys = objective.keys();
  const bool is_flow = keys.noise_target() == noise::Target::Flow,
             is_dynamic = source.sizes.shift == std::string("flux");
  if (is_flow && keys.shift == "auto" && !is_dynamic) keys.shift = run::shift_text(source.sampler.shift);
  return run::scheduler_json({.keys = keys, .sampler = source.sampler});
}

void write_scheduler(const json& config, const std::string& to) {
  create_folder(to);
  write_file(to + "/scheduler_config.json", config.dump(2) + "\n");
}

/// Returns true for files that hold weights as Python objects.
bool is_pickle(const fs::path& file) {
  const std::string end = file.extension();
  return end == ".bin" || end == ".pt" || end == ".pth" || end == ".ckpt" || end == ".pkl";
}

/// Returns true for a file of a tokenizer, which may be in the folder of a text encoder.
bool is_of_tokenizer(const fs::path& file) {
  const std::string name = file.filename();
  return file.extension() != ".safetensors" && name != "config.json" && !name.ends_with(".index.json");
}

/// Copies the files of a part. Weights of an earlier export would be read with those of this one, so they go first. A
/// part that is there already, because its run begins with an earlier export to this folder, stays as it is.
/// `takes`: returns true for a file that is copied; null = all are.
void copy_part(const std::string& from, const std::string& to, bool (*takes)(const fs::path&) = nullptr) {
  std::error_code ignored;
  if (fs::equivalent(from, to, ignored)) return;
  fs::remove_all(to);
  create_folder(to);
  try {
    // Pickles beside safetensors hold the same weights.
    const bool takes_pickles = !takes && !checkpoint::has_weight_files(from);
    for (const fs::directory_entry& entry : fs::directory_iterator(from))
      if (entry.is_regular_file() && (takes_pickles || !is_pickle(entry.path())) && (!takes || takes(entry.path())))
        fs::copy_file(entry.path(), fs::path(to) / entry.path().filename());
  } catch (const fs::filesystem_error& error) {
    throw Error("file", concat("cannot copy ", from, " to ", to, ": ", error.code().message()));
  }
}

/// Writes the folder of a part beside the denoiser, on one rank. `part`: its folder, a run, a preset or a makers' file.
void export_part(const std::string& part, const OwnLoading& loading, const std::string& to, comm::World& world,
                 const run::Program& program) {
  if (loading.adapters.empty() && fs::is_directory(part) && !run::is_run(part)) return copy_part(part, to);
  OwnModel model(part, world, at::kCPU, loading, program);
  const models::ModelShape& shape = model.model().shape;
  fs::remove_all(to);
  create_folder(to);
  checkpoint::export_weights(to, model.parameters(), run::external_names(shape), shape.architecture->to_json()(shape),
                             model.alone(), kMaxFileBytes);
}

/// Writes the folders of the text encoders and of their tokenizers, on one rank.
void export_captions(const std::string& folder, const run::PipelineSource& source, const OwnLoading& loading,
                     comm::World& world, const run::Program& program) {
  for (size_t i = 0; i < source.captions.size(); ++i) {
    const run::CaptionSource& caption = source.captions[i];
    OwnLoading own = loading;
    for (run::AdapterChoice& choice : own.adapters) choice.text_encoder = static_cast<int64_t>(i);
    export_part(caption.encoder, own, concat(folder, "/", models::caption_part_name(kTextEncoderPart, i)), world,
                program);
    if (caption.tokenizer != "bytes")
      copy_part(caption.tokenizer, concat(folder, "/", models::caption_part_name("tokenizer", i)), is_of_tokenizer);
  }
}

/// Writes the folder of the model in a pipeline, which `prepare` begins on rank 0.
void export_denoiser(const std::string& folder, distributed::DistributedModel& model, comm::Group& world,
                     at::ScalarType dtype, const std::function<void()>& prepare) {
  const models::ModelShape& shape = model.model().shape;
  const models::Diffusers& form = shape.architecture->diffusers;
  const std::string part = concat(folder, "/", form.part);
  json config;
  checkpoint::ExternalNames names;
  comm::agree(world, at::kCPU, [&] {
    require(!form.pipeline.empty(), "export", "diffusers has no pipeline that draws with a ", shape.architecture->name);
    config = form.to_json(shape);
    names = run::external_names(shape);
    prepare();
    if (world.rank() == 0) create_folder(part);
  });
  checkpoint::export_weights(part, model.parameters(), names, config, world, kMaxFileBytes, dtype);
}

}  // namespace

void export_pipeline_from(const std::string& from, const std::string& folder, distributed::DistributedModel& model,
                          comm::Mesh& mesh, at::ScalarType dtype, const run::Program& program) {
  export_denoiser(folder, model, mesh.all(), dtype, [&] {
    const run::PipelineFolder source = run::read_pipeline(from);
    if (mesh.all().rank() != 0) return;
    for (const run::PipelinePart& part : source.parts) {
      const std::string to = concat(folder, "/", part.name);
      if (part.name == "scheduler" && checkpoint::ldm_part(part.folder))
        write_scheduler(checkpoint::read_config(part.folder), to);
      else if (part.name != source.denoiser().name)
        export_part(part.folder, {}, to, mesh.world(), program);
    }
    write_file(folder + "/model_index.json", run::index_of(source).dump(2) + "\n");
  });
}

void export_parts_of_clips(const std::string& folder, const run::PipelineSource& source, comm::Mesh& mesh,
                           const OwnLoading& text_encoder, const run::Program& program) {
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (mesh.all().rank() != 0) return;
    if (source.has_latents())
      export_part(source.vae, {.seed = source.seed}, concat(folder, "/", kVaePart), mesh.world(), program);
    export_captions(folder, source, text_encoder, mesh.world(), program);
    run::write_pipeline_index(folder, source);
  });
}

std::vector<std::string> export_pipeline(const std::string& folder, distributed::DistributedModel& model,
                                         const run::DiffusionObjective& objective, comm::Mesh& mesh,
                                         at::ScalarType dtype, const OwnLoading& text_encoder,
                                         const run::Program& program) {
  const models::Diffusers& form = model.model().shape.architecture->diffusers;
  const run::PipelineSource& source = objective.pipeline();
  std::vector<std::string> notices;
  export_denoiser(folder, model, mesh.all(), dtype, [&] {
    const json scheduler = scheduler_of(objective);
    const std::string class_name = source.sizes.sizes > 0 ? "StableDiffusionXLPipeline" : form.pipeline;
    run::PipelineFolder index{
        .class_name = class_name,
        .parts = {{.name = form.part, .library = "diffusers", .class_name = form.class_name},
                  {.name = "scheduler", .library = "diffusers", .class_name = scheduler["_class_name"]}},
        .class_names = objective.class_names(),
        .zeros_for_empty = source.zeros_for_empty};
    if (source.has_latents()) index.parts.push_back({"vae", "diffusers", "AutoencoderKL", ""});
    bool has_bytes = false;
    for (size_t i = 0; i < source.captions.size(); ++i) {
      for (const char* stem : {kTextEncoderPart, "tokenizer"}) {
        const std::string name = models::caption_part_name(stem, i);
        if (stem == kTextEncoderPart || source.captions[i].tokenizer != "bytes")
          index.parts.push_back({name, "transformers", run::class_of_part(class_name, name), ""});
        else
          has_bytes = true;
      }
    }
    if (has_bytes)
      notices.push_back(
          "captions are bytes, for which diffusers has no tokenizer: the pipeline is written without one");
    const json written = run::index_of(index);
    if (mesh.all().rank() != 0) return;
    write_scheduler(scheduler, folder + "/scheduler");
    if (source.has_latents()) export_part(source.vae, {.seed = source.seed}, folder + "/vae", mesh.world(), program);
    export_captions(folder, source, text_encoder, mesh.world(), program);
    write_file(folder + "/model_index.json", written.dump(2) + "\n");
  });
  return notices;
}

void export_image_prompt(const std::string& to, const run::SavedModel& saved, const std::string& run, comm::Mesh& mesh,
                         bool uses_average, const run::Program& program) {
  run::export_image_prompt(to, saved, run, mesh, uses_average);
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (mesh.all().rank() != 0) return;
    const run::ImageEncoderSource encoder = run::image_encoder_of(run);
    export_part(encoder.path, {.seed = encoder.seed}, to + "/image_encoder", mesh.world(), program);
  });
}

}  // namespace colossal::diffusion
