#include "colossal/cli/draw_plan.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "colossal/base/error.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/predict/drawing_plan.h"
#include "colossal/run/calibrate.h"
#include "colossal/run/data.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "colossal/run/program.h"

namespace colossal::cli {
namespace {

/// Returns the pipeline of a preset, of a folder or of a run.
run::PipelineSource planned_pipeline(const std::string& from, const run::Program& program, const std::string& sampler,
                                     const diffusion::OtherParts& other) {
  const std::vector<std::string> presets = program.models.preset_names();
  std::error_code ignored;
  if (std::find(presets.begin(), presets.end(), from) == presets.end() || std::filesystem::exists(from, ignored))
    return diffusion::find_pipeline(from, program, "draw", sampler, other);
  std::vector<std::string> keys{"--model.name=" + from};
  if (!other.vae.empty()) keys.push_back("--vae.from=" + other.vae);
  const run::Config config = run::read_given_config("", keys).config;
  const run::ResolvedModel model = run::resolve_model(config, program);
  const auto objective = std::dynamic_pointer_cast<const run::DiffusionObjective>(model.objective.objective);
  require(objective != nullptr, "draw", "the preset ", from, " must draw pictures: got one that ",
          model.shape.task().purpose(), "; name one such as sd-1.5 or dit-tiny");
  run::PipelineSource source = objective->pipeline();
  source.model = from;
  run::replace_parts(source, "", other.text_encoder);
  diffusion::add_parts(source, other, program);
  return source;
}

/// Checks the options as a drawing with them does. A plan need not name what is drawn, nor the pictures that lead it.
void check_planned(const run::PipelineSource& source, diffusion::DrawOptions options) {
  std::string& drawn = source.reads_text() ? options.prompt : options.drawn;
  if (drawn.empty()) drawn = "0";
  if (source.sizes.beside > 0 && options.mask.empty()) options.mask = "mask";
  if (source.control && options.control_image.empty()) options.control_image = "control";
  if (source.image_prompt && options.ip_image.empty()) options.ip_image = "picture";
  diffusion::Drawer::check(source, options, {});
}

}  // namespace

int draw_plan(const ModelOptions& model, int64_t guidance_ranks, const diffusion::DrawOptions& options,
              const diffusion::OtherParts& other, const std::string& cluster, bool as_json,
              const run::Program* program) {
  const run::Program known = program ? *program : run::built_in();
  const run::PipelineSource source = planned_pipeline(model.from, known, options.sampler, other);
  check_planned(source, options);
  const diffusion::DrawnParts parts = diffusion::parts_of_drawing(source, options);
  run::check_guidance_ranks(guidance_ranks, parts.guidance);
  const run::ClusterChoice choice = run::choose_cluster(cluster.empty() ? "this" : cluster);
  if (!choice.note.empty()) std::fprintf(stderr, "colossal: %s\n", choice.note.c_str());
  predict::DrawnLoading loading{.layout = model.layout, .guidance_ranks = guidance_ranks, .memory = model.memory};
  if (!model.precision.mode.empty()) loading.dtype = model.precision.dtype();
  const predict::DrawingPlan plan =
      predict::plan_drawing(source,
                            {.cells = parts.cells,
                             .frames = parts.length.frames,
                             .latents = parts.length.latents,
                             .count = options.count,
                             .at_once = parts.at_once,
                             .passes = static_cast<int64_t>(run::plan_of(source, options.given()).steps.size()),
                             .is_guided = parts.guidance != 1,
                             .clip_skip = options.clip_skip,
                             .in_tiles = options.tiles},
                            loading, choice.profile, known);
  std::fputs((as_json ? predict::to_json(plan) + "\n" : predict::to_text(plan)).c_str(), stdout);
  return 0;
}

}  // namespace colossal::cli
