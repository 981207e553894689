#include "colossal/noise/sampler_route.h"

#include <algorithm>
#include <cmath>

#include "colossal/noise/flow_times.h"

namespace colossal::noise {
namespace {

constexpr double kEdmMost = 80, kEdmLeast = 0.002;  // arXiv:2206.00364, table 1

Mix mix_of(double sigma, Grid grid) {
  if (grid == Grid::Sigma) return {1, sigma};
  const double signal = 1 / std::sqrt(sigma * sigma + 1);
  return {signal, sigma * signal};
}

/// Joins levels, each the end of the leg before it.
std::vector<Leg> joined(const std::vector<Level>& levels, const Mix& end) {
  std::vector<Leg> legs;
  for (size_t i = 0; i < levels.size(); ++i)
    legs.push_back({levels[i], i + 1 < levels.size() ? levels[i + 1].mix : end, i > 0 ? levels[i - 1].mix : Mix{}});
  return legs;
}

std::vector<Leg> flow_legs(const NoiseLevels& levels, const SamplerOptions& o) {
  // diffusers shifts the ends of its table when the scheduler is made, and all times again when they are chosen.
  const double most = shifted(1, o.shift), least = shifted(1 / static_cast<double>(levels.steps()), o.shift);
  const bool is_trailing = !o.spacing.empty() && spacing_named(o.spacing) == Spacing::Trailing;
  std::vector<Level> visited;
  for (int64_t i = 0; i < o.steps; ++i) {
    if (is_trailing) {
      const double time = 1 - static_cast<double>(i) / static_cast<double>(o.steps);
      visited.push_back(flow_level(shifted(time, o.shift), levels.steps()));
      continue;
    }
    const double part = o.steps == 1 ? 0 : static_cast<double>(i) / static_cast<double>(o.steps - 1);
    visited.push_back(flow_level(shifted(most + part * (least - most), o.shift), levels.steps()));
  }
  return joined(visited, {});
}

std::vector<Leg> edm_legs(const SamplerOptions& o, Grid grid) {
  std::vector<Level> visited;
  for (const double sigma : karras_sigmas(o.steps, kEdmMost, kEdmLeast))
    visited.push_back({edm_level(sigma).time, mix_of(sigma, grid)});
  return joined(visited, o.ends_at_sigma_min ? visited.back().mix : Mix{});
}

std::vector<Leg> table_legs(const NoiseLevels& levels, const SamplerOptions& o, bool strides,
                            const std::vector<double>& times) {
  std::vector<Level> visited;
  for (const double time : times) visited.push_back(table_level(levels, static_cast<int64_t>(time)));
  std::vector<Leg> legs = joined(visited, {});
  if (!strides) return legs;
  const int64_t stride = levels.steps() / o.steps;
  for (size_t i = 0; i < legs.size(); ++i) {
    const int64_t t = static_cast<int64_t>(times[i]), below = t - stride, above = t + stride;
    legs[i].to = below >= 0 ? levels.mix(below) : o.set_alpha_to_one ? Mix{} : levels.mix(0);
    legs[i].before = above < levels.steps() ? levels.mix(above) : Mix{};
  }
  return legs;
}

/// The times of a table at which Karras' deviations are; `times` become theirs.
std::vector<double> space_as_karras(const NoiseLevels& levels, const GridRules& rules, std::vector<double>& times) {
  const SigmaTable table(levels);
  const bool inner = rules.grid == Grid::Inner;  // the ends are those of the table, not of the spacing
  const double first = inner ? static_cast<double>(levels.steps() - 1) : times.front();
  const std::vector<double> sigmas = karras_sigmas(static_cast<int64_t>(times.size()), table.sigma_at(first),
                                                   table.sigma_at(inner ? 0 : times.back()));
  const bool truncates = rules.truncates && levels.options().schedule == "cosine";
  std::transform(sigmas.begin(), sigmas.end(), times.begin(), [&](double sigma) {
    const double time = table.time_of(sigma);
    return !inner ? time : truncates ? std::floor(time) : std::nearbyint(time);
  });
  return sigmas;
}

std::vector<Leg> sigma_legs(const NoiseLevels& levels, const SamplerOptions& o, const GridRules& rules,
                            std::vector<double> times) {
  const SigmaTable table(levels);
  std::vector<double> sigmas;
  if (o.karras) {
    sigmas = space_as_karras(levels, rules, times);
  } else {
    for (const double time : times) sigmas.push_back(table.sigma_at(time));
  }
  std::vector<Level> visited;
  for (size_t i = 0; i < times.size(); ++i) visited.push_back({times[i], mix_of(sigmas[i], rules.grid)});
  return joined(visited, o.ends_at_sigma_min ? mix_of(table.sigma_at(0), rules.grid) : Mix{});
}

std::vector<Leg> legs_of(const NoiseLevels& levels, const SamplerOptions& o, const GridRules& rules) {
  if (o.target == Target::Flow) return flow_legs(levels, o);
  if (o.target == Target::Edm) return edm_legs(o, rules.grid);
  TimesRequest request{spacing_named(o.spacing), levels.steps(), o.steps, o.steps_offset};
  if (rules.grid == Grid::Table) return table_legs(levels, o, rules.strides, spaced_times(request));
  request.points = rules.grid == Grid::Sigma ? Points::Fractional : Points::Inner;
  return sigma_legs(levels, o, rules, spaced_times(request));
}

/// Returns the deviation of the noise with which a sampler of Grid::Sigma begins: that of x0 + sigma e for a picture of
/// deviation 1, or sigma alone with the spacings that visit the last time, as in diffusers.
double first_deviation(const SamplerOptions& o, double sigma) {
  return o.target == Target::Edm || o.spacing == "leading" ? std::hypot(sigma, 1) : sigma;
}

}  // namespace

Route make_route(const NoiseLevels& levels, const SamplerOptions& options, const GridRules& rules) {
  Route route{.options = options, .legs = {}};
  SamplerOptions& o = route.options;
  o.ends_at_sigma_min = o.ends_at_sigma_min && rules.may_stop;
  route.legs = legs_of(levels, o, rules);
  const int64_t share = static_cast<int64_t>(static_cast<double>(o.steps) * o.strength);
  route.first = static_cast<size_t>(o.steps - std::max<int64_t>(share, 1));
  if (rules.grid == Grid::Sigma && o.target != Target::Flow)
    route.start_scale = first_deviation(o, route.legs.front().from.mix.noise);
  return route;
}

SamplerStep estimate_step(const Route& route, const Level& from) {
  SamplerStep step;
  step.time = from.time;
  step.input_scale = input_scale(route.options.target, from.mix);
  step.level = from.mix;
  step.estimate = read_sample(route.options.target, from.mix);
  return step;
}

SamplerStep step_to(const Route& route, const Level& from, const Mix& to, double fresh_noise) {
  SamplerStep step = estimate_step(route, from);
  const Reading noise = read_noise(route.options.target, from.mix);  // of the estimate before it is clipped
  step.next.sample = to.noise * noise.sample;
  step.next.output = to.noise * noise.output;
  step.next.estimates[0] = to.signal;
  step.next.noise = fresh_noise;
  return step;
}

}  // namespace colossal::noise
