// The scheduler of a pipeline of diffusers (0.42), as keys of [diffusion] and options of a sampler, and back.
//
//   const SchedulerConfig scheduler = open_scheduler("stable-diffusion-v1-5/scheduler", {.pipeline =
//   pipeline.class_name}); scheduler.keys.target;                              // "epsilon"
//   noise::SamplerOptions options = scheduler.sampler;  // .sampler = "pndm", .spacing = "leading", .steps_offset = 1,
//   ... options.steps = 50;
//   const noise::SamplerPlan plan = noise::plan_sampler(noise::NoiseLevels(scheduler.keys.levels()), options);
//
// A key that changes the numbers of a picture is read or refused. A key of another class of schedulers is ignored, as
// in diffusers, where folders keep such keys. The classes and their samplers:
//
//   DDPMScheduler                    ddpm
//   DDIMScheduler                    ddim
//   PNDMScheduler                    pndm, with skip_prk_steps
//   EulerDiscreteScheduler           euler
//   EulerAncestralDiscreteScheduler  euler-ancestral
//   HeunDiscreteScheduler            heun
//   DPMSolverMultistepScheduler      dpm++2m, with algorithm_type sde-dpmsolver++ dpm++2m-sde
//   UniPCMultistepScheduler          unipc
//   FlowMatchEulerDiscreteScheduler  flow
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/noise/sampler.h"
#include "colossal/run/objectives/diffusion/diffusion_keys.h"

namespace colossal::run {

struct SchedulerConfig {
  /// Of a flow, the shift is a number, or with use_dynamic_shifting "auto", the rule of FLUX dev. Besides: target,
  /// schedule, betas, number of levels, zero_terminal_snr and shift; the others are defaults, and guidance is 0
  DiffusionKeys keys{};
  /// Everything but steps, eta and strength, which a scheduler does not have
  noise::SamplerOptions sampler{};
};

/// The circumstances of a scheduler.
struct SchedulerUse {
  /// The sampler of the user. It takes the keys of its own class from the config of any class; empty = that of the
  /// config
  std::string sampler{};
  /// The class of the pipeline, because that of FLUX spaces the times of a flow in its own way, and those of Stable
  /// Diffusion 1 and 2 set steps_offset to 1, and turn off clip_sample, or if they paint inside a mask turn on
  /// skip_prk_steps; empty = none
  std::string pipeline{};
};

/// Returns the text of a shift for DiffusionKeys::shift.
std::string shift_text(double shift);

/// Returns the classes of schedulers that are known.
std::vector<std::string> scheduler_names();

/// Returns what the config of a scheduler says.
/// Errors ("scheduler"): an unknown class (the message has the nearest), unless the user names a sampler; an unknown
/// sampler; a key that no known class has; PNDM with Runge-Kutta steps. Errors ("model"): a value of a key of this
/// class with which other pictures would follow than those that are computed here.
SchedulerConfig read_scheduler(const nlohmann::json& config, const SchedulerUse& use = {});

/// Reads scheduler_config.json in `folder`, also with the number -Infinity, which diffusers writes and JSON does not
/// have. `folder` may also be the scheduler of a makers' single file (checkpoint/ldm/file.h). Errors: those of
/// read_scheduler(); a file that is missing or no JSON.
SchedulerConfig open_scheduler(const std::string& folder, const SchedulerUse& use = {});

/// Returns the config of the scheduler with which diffusers draws the same, with all keys of its class.
/// Errors ("export"): target edm, for which diffusers has no scheduler of these.
nlohmann::json scheduler_json(const SchedulerConfig& scheduler);

}  // namespace colossal::run
