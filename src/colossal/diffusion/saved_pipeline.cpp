#include "colossal/diffusion/saved_pipeline.h"

#include "colossal/base/error.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/run/adapter_choice.h"
#include "colossal/run/control_source.h"
#include "colossal/run/data.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/learned_words.h"
#include "colossal/run/model_source.h"
#include "colossal/run/saved_model.h"
#include "colossal/run/stored_config.h"

namespace colossal::diffusion {

void OtherParts::fields(Fields& f) {
  f.text("vae", vae, "autoencoder in place of that of --from: a folder, a file or a run");
  f.text("text_encoder", text_encoder,
         "text encoder in place of that of --from: a folder with its tokenizer, or a pipeline; of several, "
         "text_encoder_2=FOLDER, divided by commas");
  f.text("control", control,
         "FOLDER[:SCALE], a ControlNet that a control picture leads: a folder of diffusers, or a run with adapter.kind "
         "= \"controlnet\"; default: that of --from, if it is such a run");
  f.text("ip", image_prompt,
         "FOLDER[:SCALE], an IP-adapter that reads an image prompt: a file ip-adapter*.safetensors with the folder "
         "image_encoder beside it, their folder, or a run with adapter.kind = \"ip-adapter\"; default: that of --from, "
         "if it is such a run");
  f.texts("embedding", embeddings,
          "learned words that a prompt may have: a .safetensors file of diffusers or other programs, its folder, or a "
          "run with adapter.kind = \"textual-inversion\"; may be given several times");
}

std::shared_ptr<const run::DiffusionObjective> objective_of_run(const std::string& folder, const run::Program& program,
                                                                const char* component) {
  require(
      run::is_run(folder), component,
      "--from must be the folder of a run with [diffusion], of an export of one, or of a pipeline of diffusers: got ",
      folder, ", which has none of config.toml, colossal_pipeline.json and model_index.json; `colossal draw` takes ",
      "a model alone with --vae and --text-encoder");
  const run::ResolvedModel model = run::resolve_model(run::stored_config(folder), program);
  auto objective = std::dynamic_pointer_cast<const run::DiffusionObjective>(model.objective.objective);
  require(objective != nullptr, component, "the model of the run must draw pictures: got one that ",
          model.shape.task().purpose(), " in ", folder, "; use the commands for such models");
  return objective;
}

bool draws_pictures(const std::string& from, const run::Program& program) {
  if (run::has_pipeline(from)) return true;
  // The task is enough for most runs, whose data need not be resolved.
  if (!run::is_run(from) || run::task_of(from, program).reads != models::Reads::Fields) return false;
  const run::ResolvedModel model = run::resolve_model(run::stored_config(from), program);
  return std::dynamic_pointer_cast<const run::DiffusionObjective>(model.objective.objective) != nullptr;
}

namespace {

/// Returns the pipeline with OtherParts::replaced() in place of its own parts.
run::PipelineSource replaced_pipeline(const std::string& from, const run::Program& program, const char* component,
                                      const std::string& sampler, const OtherParts& other) {
  const bool is_pipeline = run::has_pipeline(from), is_replaced = !other.vae.empty() || !other.text_encoder.empty();
  if (!is_pipeline && !run::is_run(from) && is_replaced)
    return run::pipeline_of_model(from, other.vae, other.text_encoder);
  if (is_pipeline) return run::pipeline_in_folder(from, program.models, sampler, other.replaced());
  const auto objective = objective_of_run(from, program, component);
  run::PipelineSource source = objective->pipeline();
  source.model = from;
  if (objective->learns_words()) {
    for (run::CaptionSource& one : source.captions) one.words.clear();  // they are read with their vectors
    source.learned = {from};
  } else if (objective->trains_text_encoder()) {
    source.text_adapters = from;
  } else if (objective->trains_control()) {
    source.control = {.folder = from};
  } else if (run::is_image_prompt_run(from)) {
    source.image_prompt = {.folder = from};
  }
  run::replace_parts(source, other.vae, other.text_encoder);
  return source;
}

}  // namespace

run::PipelineSource find_pipeline(const std::string& from, const run::Program& program, const char* component,
                                  const std::string& sampler, const OtherParts& other) {
  run::PipelineSource source = replaced_pipeline(from, program, component, sampler, other);
  add_parts(source, other, program);
  return source;
}

void add_parts(run::PipelineSource& source, const OtherParts& other, const run::Program& program) {
  require(other.embeddings.empty() || source.reads_text(), "draw",
          "--embedding needs a model that reads a prompt: got one of classes; leave it out");
  source.learned.insert(source.learned.end(), other.embeddings.begin(), other.embeddings.end());
  run::read_words(source.learned);  // before any rank starts
  if (!other.control.empty()) source.control = run::parse_adapter(other.control);
  if (!other.image_prompt.empty()) source.image_prompt = run::parse_adapter(other.image_prompt);
  if (!source.control && !source.image_prompt) return;
  const models::ModelShape shape =
      models::without_image_prompt(models::without_control(run::find_source(source.model, program).shape));
  if (source.control) {
    const std::string& folder = source.control->folder;
    run::check_control_factor(run::control_of(folder, shape), source.factor, folder);
  }
  if (!source.image_prompt) return;
  run::image_prompt_of(source.image_prompt->folder, shape);
  source.image_encoder = run::image_encoder_of(source.image_prompt->folder);
}

}  // namespace colossal::diffusion
