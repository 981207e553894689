// The sampler with which a run's model draws, unless its user names another.
//
//   const noise::SamplerPlan plan = plan_of(objective->keys(), {.sampler = "ddpm", .steps = 100});
#pragma once
#include <string>

#include "colossal/noise/sampler.h"
#include "colossal/run/objectives/diffusion/diffusion_keys.h"

namespace colossal::diffusion {

/// Returns the plan of a sampler for a model that was trained with `keys`, completed(). An empty `sampler` is "flow"
/// for a flow, else "ddim". Target and shift are those of the keys. Estimates of pixels are clipped to [-1, 1] where
/// the sampler can do so. Errors: those of noise::plan_sampler().
noise::SamplerPlan plan_of(const run::DiffusionKeys& keys, noise::SamplerOptions options);

/// Returns the name of the sampler that plan_of() takes.
std::string sampler_of(const run::DiffusionKeys& keys, const std::string& sampler);

}  // namespace colossal::diffusion
