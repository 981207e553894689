// The pipeline of a folder: of a run whose model draws pictures, or of diffusers.
//
//   const run::PipelineSource source = find_pipeline("runs/dit-shapes", program, "draw");
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"
#include "colossal/run/program.h"

namespace colossal::diffusion {

/// Parts that a pipeline gets besides those of its folder. Commands take them as flags, programs as JSON, under the
/// same names.
struct OtherParts {
  std::string vae{}, text_encoder{};      ///< those of run::OtherParts
  std::string control{};                  ///< FOLDER[:SCALE] of a ControlNet (run::parse_adapter()); empty = none
  std::string image_prompt{};             ///< FOLDER[:SCALE] of an IP-adapter; empty = none
  std::vector<std::string> embeddings{};  ///< files and runs with learned words (run/learned_words.h)

  void fields(Fields& f);
  run::OtherParts replaced() const { return {vae, text_encoder}; }
};

/// Returns the objective of the run in `folder`, as its config has it. It reads no weights. Errors (`component`): no
/// run folder; a run whose model does not draw pictures. Errors of run::resolve_model().
std::shared_ptr<const run::DiffusionObjective> objective_of_run(const std::string& folder, const run::Program& program,
                                                                const char* component);

/// Returns true for the folder of a pipeline of diffusers, and for that of a run whose model draws pictures. It reads
/// no weights. Errors: those of run::task_of() for a run.
bool draws_pictures(const std::string& from, const run::Program& program);

/// Finds the pipeline of a run folder, or of a folder of diffusers; with `other` parts also that of a model alone, such
/// as the folder of a transformer (run::pipeline_of_model()). A run that trained a ControlNet or an IP-adapter draws
/// with it, unless `other` names one. `sampler`: as for run::pipeline_in_folder(). It reads no weights but those of
/// learned words.
/// Errors: those of objective_of_run(), run::pipeline_in_folder(), run::pipeline_of_model(), run::replace_parts() and
/// add_parts().
run::PipelineSource find_pipeline(const std::string& from, const run::Program& program, const char* component,
                                  const std::string& sampler = "", const OtherParts& other = {});

/// Adds the ControlNet, the IP-adapter and the learned words of `other` to a pipeline. Errors ("adapter"): those of
/// run::parse_adapter(), run::control_of(), run::check_control_factor(), run::image_encoder_of(),
/// run::image_prompt_of() and run::read_words(). ("draw") learned words for a model of classes.
void add_parts(run::PipelineSource& source, const OtherParts& other, const run::Program& program);

}  // namespace colossal::diffusion
