// Samplers whose steps read one level: ddpm, ddim, euler, euler-ancestral, heun and flow.
#include <algorithm>
#include <cmath>

#include "colossal/noise/sampler_route.h"

namespace colossal::noise {
namespace {

double square(double x) { return x * x; }

/// The variance of the posterior, beta~, and beta of a leg.
struct Variances {
  double small, large;
};

Variances variances_of(const Leg& leg) {
  const double beta = 1 - square(leg.from.mix.signal / leg.to.signal);
  return {square(leg.to.noise / leg.from.mix.noise) * beta, beta};
}

/// Returns the factor of the noise of a ddpm step; a learned one is set in the step.
double ddpm_noise(const Route& route, const Variances& variances, SamplerStep& step) {
  const double small = std::max(variances.small, 1e-20);  // diffusers' least variance, which the last step has
  switch (route.options.variance) {
    case Variance::Small:
      return std::sqrt(small);
    case Variance::Large:
      return std::sqrt(variances.large);
    case Variance::Learned:
      break;
  }
  step.learned = LogVariances{std::log(small), std::log(variances.large)};
  return 0;
}

}  // namespace

std::vector<SamplerStep> ddpm_steps(const Route& route) {
  std::vector<SamplerStep> steps;
  for (size_t i = route.first; i < route.legs.size(); ++i) {
    const Leg& leg = route.legs[i];
    SamplerStep step = estimate_step(route, leg.from);
    step.clip = route.options.clip;
    const Variances variances = variances_of(leg);
    step.next.estimates[0] = leg.to.signal * variances.large / square(leg.from.mix.noise);
    step.next.sample = leg.from.mix.signal / leg.to.signal * square(leg.to.noise / leg.from.mix.noise);
    if (leg.from.time > 0 || route.options.target == Target::Edm) step.next.noise = ddpm_noise(route, variances, step);
    steps.push_back(step);
  }
  return steps;
}

std::vector<SamplerStep> first_order_steps(const Route& route) {
  std::vector<SamplerStep> steps;
  for (size_t i = route.first; i < route.legs.size(); ++i) {
    const Leg& leg = route.legs[i];
    const double eta = route.options.eta;
    const double fresh = eta > 0 ? eta * std::sqrt(variances_of(leg).small) : 0;
    Mix to = leg.to;
    to.noise = std::sqrt(std::max(square(to.noise) - square(fresh), 0.0));
    steps.push_back(step_to(route, leg.from, to, fresh));
    if (route.options.sampler == "ddim") steps.back().clip = route.options.clip;
  }
  return steps;
}

std::vector<SamplerStep> euler_ancestral_steps(const Route& route) {
  std::vector<SamplerStep> steps;
  for (size_t i = route.first; i < route.legs.size(); ++i) {
    const Leg& leg = route.legs[i];
    const double from = square(leg.from.mix.noise), to = square(leg.to.noise);
    const double up = std::max(to * (from - to) / from, 0.0);
    steps.push_back(step_to(route, leg.from, {1, std::sqrt(to - up)}, std::sqrt(up)));
  }
  return steps;
}

std::vector<SamplerStep> heun_steps(const Route& route) {
  std::vector<SamplerStep> steps;
  for (size_t i = route.first; i < route.legs.size(); ++i) {
    const Leg& leg = route.legs[i];
    const double from = leg.from.mix.noise, to = leg.to.noise;
    // Both evaluations take the slope (x - x0) / sigma from the clipped x0.
    SamplerStep first = estimate_step(route, leg.from);
    first.clip = route.options.clip;
    first.next.sample = to / from;
    first.next.estimates[0] = 1 - to / from;
    steps.push_back(first);
    if (i + 1 == route.legs.size()) break;  // at the picture the slope is not defined
    steps.back().next_base = Combination{.sample = 1};
    SamplerStep second = estimate_step(route, route.legs[i + 1].from);
    second.clip = route.options.clip;
    const double half = (to - from) / 2;
    second.next.base = 1 + half / from;
    second.next.estimates[1] = -half / from;
    second.next.sample = half / to;
    second.next.estimates[0] = -half / to;
    steps.push_back(second);
  }
  return steps;
}

}  // namespace colossal::noise
