#include "colossal/diffusion/run_sampler.h"

namespace colossal::diffusion {

std::string sampler_of(const run::DiffusionKeys& keys, const std::string& sampler) {
  if (!sampler.empty()) return sampler;
  return keys.noise_target() == noise::Target::Flow ? "flow" : "ddim";
}

noise::SamplerPlan plan_of(const run::DiffusionKeys& keys, noise::SamplerOptions options) {
  options.sampler = sampler_of(keys, options.sampler);
  options.target = keys.noise_target();
  const bool is_flow = options.target == noise::Target::Flow;
  if (is_flow) options.shift = keys.flow().shift;
  const bool can_clip = options.sampler == "ddpm" || options.sampler == "ddim" || options.sampler == "heun";
  if (can_clip) options.clip = 1;
  return noise::plan_sampler(noise::NoiseLevels(keys.levels()), options);
}

}  // namespace colossal::diffusion
