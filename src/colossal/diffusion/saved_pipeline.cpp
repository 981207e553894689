#include "colossal/diffusion/saved_pipeline.h"

#include "colossal/base/error.h"
#include "colossal/run/data.h"
#include "colossal/run/saved_model.h"
#include "colossal/run/stored_config.h"

namespace colossal::diffusion {

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

run::PipelineSource find_pipeline(const std::string& from, const run::Program& program, const char* component,
                                  const std::string& sampler, const OtherParts& other) {
  const bool is_pipeline = run::has_pipeline(from), is_replaced = !other.vae.empty() || !other.text_encoder.empty();
  if (!is_pipeline && !run::is_run(from) && is_replaced)
    return run::pipeline_of_model(from, other.vae, other.text_encoder);
  run::PipelineSource source;
  if (is_pipeline) {
    source = run::pipeline_in_folder(from, program.models, sampler);
  } else {
    const auto objective = objective_of_run(from, program, component);
    source = objective->pipeline();
    source.model = from;
    if (objective->learns_words()) {
      source.captions.front().words.clear();  // those of the run are read with their vectors
      source.learned = {from};
    } else if (objective->trains_text_encoder()) {
      source.text_adapters = from;
    }
  }
  run::replace_parts(source, other.vae, other.text_encoder);
  return source;
}

}  // namespace colossal::diffusion
