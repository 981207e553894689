// The noise levels that a sampler passes, and the functions that make steps of them.
#pragma once
#include <vector>

#include "colossal/noise/sampler.h"

namespace colossal::noise {

/// The way of one step.
struct Leg {
  Level from;
  Mix to;
  Mix before;  ///< the level as far above `from` as `to` is below it; pndm's second evaluation begins there
};

struct Route {
  SamplerOptions options;
  std::vector<Leg> legs;   ///< of all options.steps
  size_t first = 0;        ///< leg with which a drawing of options.strength begins
  double start_scale = 1;  ///< deviation of the noise with which leg 0 begins
};

/// The table of which a sampler takes its levels.
enum class Grid {
  Table,  ///< whole times; x has unit variance
  Sigma,  ///< times between those of the table too; x = x0 + sigma e
  Inner,  ///< whole times, Points::Inner; x has unit variance
};

/// How a sampler chooses its levels.
struct GridRules {
  Grid grid;
  bool strides = false;    ///< Grid::Table: a step ends T / n times below its begin, wherever the next one begins
  bool truncates = false;  ///< Grid::Inner: Karras' times of a cosine schedule are rounded down
  bool may_stop = false;   ///< SamplerOptions::ends_at_sigma_min is read
};

/// Returns the route of a sampler with these rules. `options` is checked, and its spacing is set.
Route make_route(const NoiseLevels& levels, const SamplerOptions& options, const GridRules& rules);

/// The steps of the samplers. Those of ddim, euler and flow are of first order: signal' x0 + noise' e.
std::vector<SamplerStep> ddpm_steps(const Route& route);
std::vector<SamplerStep> first_order_steps(const Route& route);
std::vector<SamplerStep> euler_ancestral_steps(const Route& route);
std::vector<SamplerStep> heun_steps(const Route& route);
std::vector<SamplerStep> pndm_steps(const Route& route);
std::vector<SamplerStep> dpm_steps(const Route& route);
std::vector<SamplerStep> dpm_sde_steps(const Route& route);
std::vector<SamplerStep> unipc_steps(const Route& route);

/// Returns a step that reads x at `from` and estimates x0; the next sample is not set.
SamplerStep estimate_step(const Route& route, const Level& from);

/// Returns the step to signal' x0 + noise' e + fresh_noise n.
SamplerStep step_to(const Route& route, const Level& from, const Mix& to, double fresh_noise = 0);

}  // namespace colossal::noise
