#include "colossal/diffusion/rows.h"

#include <string>
#include <vector>

#include "colossal/diffusion/drawing.h"
#include "colossal/diffusion/drawn_class.h"
#include "colossal/diffusion/run_sampler.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/train/engine.h"
#include "colossal/train/trainer.h"

namespace colossal::diffusion {
namespace {

constexpr int64_t kSamples = 4, kSteps = 25;

/// Draws training.sample_prompt, or the first class, four times.
std::vector<run::Sample> samples_of(train::Trainer& trainer, const run::ShowText&) {
  const auto* objective = dynamic_cast<const run::DiffusionObjective*>(&trainer.engine().objective());
  if (objective == nullptr) return {};
  const run::Config& config = trainer.config();
  const std::string& prompt = config.training.sample_prompt;
  const models::DenoiserSizes& sizes = objective->sizes();
  const int64_t drawn = prompt.empty() ? 0 : drawn_class(prompt, objective->class_names(), sizes.classes);
  Drawing drawing{.guidance = objective->keys().guidance};
  for (int64_t i = 0; i < kSamples; ++i) {
    drawing.classes.push_back(drawn);
    drawing.seeds.push_back(static_cast<uint64_t>(config.training.seed + i));
  }
  const at::Tensor pictures =
      draw(trainer.engine().distributed(), plan_of(objective->keys(), {.steps = kSteps}), drawing);
  const std::string title = class_title(drawn, objective->class_names());
  std::vector<run::Sample> samples;
  for (int64_t i = 0; i < kSamples; ++i)
    samples.push_back(run::picture_sample(title, concat("class-", drawn, "-", i + 1), picture_of(pictures[i])));
  return samples;
}

}  // namespace

run::Program with_diffusion(run::Program program) {
  for (const run::ObjectiveRow& one : program.objectives.rows()) {
    if (one.samples || one.tables.empty() || !one.tables.front().keys.holds<run::DiffusionKeys>()) continue;
    program.objectives.at(one.name).samples = samples_of;
  }
  return program;
}

}  // namespace colossal::diffusion
