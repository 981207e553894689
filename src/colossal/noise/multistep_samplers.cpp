// Samplers whose steps read earlier estimates: pndm, dpm++2m, dpm++2m-sde and unipc.
#include <algorithm>
#include <array>
#include <cmath>

#include "colossal/noise/sampler_route.h"

namespace colossal::noise {
namespace {

/// The way of a step of dpm++2m or unipc in lambda = log(signal / noise).
struct Stretch {
  double ratio;   ///< exp(-h) = sigma' / sigma, where h is the way in lambda
  double before;  ///< ratio of the way of the step before it to h; 0 without such a step
};

double lambda_of(const Mix& mix) { return std::log(mix.signal) - std::log(mix.noise); }

Stretch stretch_of(const Route& route, size_t i) {
  const Leg& leg = route.legs[i];
  const Mix &from = leg.from.mix, &to = leg.to;
  const double way = lambda_of(to) - lambda_of(from);
  const double ratio = (to.noise / to.signal) / (from.noise / from.signal);
  return {ratio, i > route.first ? (lambda_of(from) - lambda_of(route.legs[i - 1].from.mix)) / way : 0};
}

/// Adds `factor` (x0 + (x0 - x0 of the step before) / (2 r)) for order 2, and `factor` x0 for order 1. The ratio r is
/// `before`, and `newest` is the index of x0 in the estimates.
void add_extrapolated(Combination& sum, double factor, int order, double before, size_t newest = 0) {
  sum.estimates[newest] += factor;
  if (order == 1) return;
  sum.estimates[newest] += factor / (2 * before);
  sum.estimates[newest + 1] -= factor / (2 * before);
}

/// Returns the order of a step: 1 for the first one, without an estimate before it, and for the last one where the
/// picture has no lambda or steps are few.
int dpm_order(const Route& route, size_t i) {
  const bool is_last = i + 1 == route.legs.size();
  return i == route.first || (is_last && (route.legs.size() < 15 || route.legs[i].to.noise == 0)) ? 1 : 2;
}

int unipc_order(const Route& route, size_t i) { return i == route.first || i + 1 == route.legs.size() ? 1 : 2; }

/// The factors of the sum of outputs of a step of pndm that `count` kept outputs precede (Adams and Bashforth).
std::array<double, 4> adams_factors(size_t count) {
  switch (count) {
    case 0:
      return {1, 0, 0, 0};
    case 1:
      return {3. / 2, -1. / 2, 0, 0};
    case 2:
      return {23. / 12, -16. / 12, 5. / 12, 0};
    default:
      return {55. / 24, -59. / 24, 37. / 24, -9. / 24};
  }
}

/// Returns a step of pndm: one of ddim with a sum of outputs for the output, from the sample or the kept one.
SamplerStep pndm_step(const Route& route, const Level& seen, const Mix& from, const Mix& to,
                      const std::array<double, 4>& factors, double Combination::* start) {
  SamplerStep step = estimate_step(route, seen);
  step.estimate = {0, 1};
  const Reading picture = read_sample(route.options.target, from), noise = read_noise(route.options.target, from);
  step.next.*start = to.signal * picture.sample + to.noise * noise.sample;
  const double output = to.signal * picture.output + to.noise * noise.output;
  for (size_t i = 0; i < factors.size(); ++i) step.next.estimates[i] = factors[i] * output;
  return step;
}

/// Sets the corrected sample of the level that unipc reaches over leg `i`: a sum of the kept sample, the estimate of x0
/// here, and the one or two before it.
void set_corrected(const Route& route, size_t i, Combination& corrected) {
  const Leg& leg = route.legs[i];
  const auto [ratio, before] = stretch_of(route, i);
  const double shrink = ratio - 1, factor = -leg.to.signal * shrink;  // e^-h - 1 is B(h) of variant bh2
  double here = 0.5, earlier = 0;
  if (unipc_order(route, i) == 2) {
    const double h = -std::log(ratio), phi = -shrink / h - 1, r = -before;
    // [1 1; r 1] (earlier, here) = (first, second)
    const double first = phi / shrink, second = 2 * (-phi / h - 0.5) / shrink;
    earlier = (first - second) / (1 - r);
    here = first - earlier;
    corrected.estimates[2] += factor * earlier / r;
    corrected.estimates[1] -= factor * earlier / r;
  }
  corrected.base = leg.to.noise / leg.from.mix.noise;
  corrected.estimates[1] += factor * (1 - here);
  corrected.estimates[0] += factor * here;
}

std::vector<SamplerStep> dpm_steps_of(const Route& route, bool stochastic) {
  std::vector<SamplerStep> steps;
  for (size_t i = route.first; i < route.legs.size(); ++i) {
    const Leg& leg = route.legs[i];
    const auto [ratio, before] = stretch_of(route, i);
    SamplerStep step = estimate_step(route, leg.from);
    const double kept = stochastic ? ratio * ratio : ratio;  // the stochastic equation forgets twice as fast
    step.next.sample = leg.to.noise / leg.from.mix.noise * (stochastic ? ratio : 1);
    add_extrapolated(step.next, leg.to.signal * (1 - kept), dpm_order(route, i), before);
    if (stochastic) step.next.noise = leg.to.noise * std::sqrt(std::max(1 - kept, 0.0));
    steps.push_back(step);
  }
  return steps;
}

}  // namespace

std::vector<SamplerStep> dpm_steps(const Route& route) { return dpm_steps_of(route, false); }
std::vector<SamplerStep> dpm_sde_steps(const Route& route) { return dpm_steps_of(route, true); }

std::vector<SamplerStep> pndm_steps(const Route& route) {
  std::vector<SamplerStep> steps;
  const auto add = [&](const Level& seen, const Mix& from, const Mix& to, const std::array<double, 4>& factors,
                       double Combination::* start = & Combination::sample) {
    steps.push_back(pndm_step(route, seen, from, to, factors, start));
  };
  const Leg& first = route.legs[route.first];
  add(first.from, first.from.mix, first.to, adams_factors(0));
  if (route.first + 1 == route.legs.size()) return steps;
  // The first step is made again with the mean of the outputs at both its ends. The second output is not kept.
  steps.back().next_base = Combination{.sample = 1};
  const Leg& second = route.legs[route.first + 1];
  add(second.from, second.before, second.from.mix, {0.5, 0.5, 0, 0}, &Combination::base);
  steps.back().keeps_estimate = false;
  for (size_t i = route.first + 1; i < route.legs.size(); ++i) {
    const Leg& leg = route.legs[i];
    add(leg.from, leg.from.mix, leg.to, adams_factors(i - route.first));
  }
  return steps;
}

std::vector<SamplerStep> unipc_steps(const Route& route) {
  std::vector<SamplerStep> steps;
  for (size_t i = route.first; i < route.legs.size(); ++i) {
    const Leg& leg = route.legs[i];
    const auto [ratio, before] = stretch_of(route, i);
    SamplerStep step = estimate_step(route, leg.from);
    Combination corrected{.sample = 1};
    if (i > route.first) {
      corrected.sample = 0;
      set_corrected(route, i - 1, corrected);
    }
    if (i + 1 < route.legs.size()) step.next_base = corrected;
    // The prediction begins at the corrected sample, which is written out in the same tensors.
    const double start = leg.to.noise / leg.from.mix.noise;
    step.next = corrected;
    step.next.sample *= start;
    step.next.base *= start;
    for (double& factor : step.next.estimates) factor *= start;
    add_extrapolated(step.next, leg.to.signal * (1 - ratio), unipc_order(route, i), before);
    steps.push_back(step);
  }
  return steps;
}

}  // namespace colossal::noise
