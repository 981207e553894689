// Draws four numbers by plans of samplers, for the script that compares them with diffusers.
//
// Usage: colossal_sampler_probe < LINES
//   LINES: sampler, spacing, target, karras (0 or 1), steps, zero_terminal_snr (0 or 1), steps_offset, set_alpha_to_one
//   prints a line for each: the four numbers, or the word "refused"
// The drawing begins with sin(.3 i + .1) times the plan's start, the model predicts .5 x + .1 + .0002 t, and fresh
// noise of evaluation j is cos(.7 i + j).
#include <array>
#include <cmath>
#include <cstdio>
#include <deque>
#include <iostream>
#include <string>

#include "colossal/base/error.h"
#include "colossal/noise/noise_levels.h"
#include "colossal/noise/sampler.h"

namespace {

using namespace colossal;
using Numbers = std::array<double, 4>;

struct Drawn {
  Numbers sample, base, output{};
  std::deque<Numbers> estimates{};  // the newest first
  int evaluation = 0;

  double sum(const noise::Combination& c, size_t i) const {
    double value = c.sample * sample[i] + c.base * base[i] + c.output * output[i] +
                   c.noise * std::cos(.7 * static_cast<double>(i) + evaluation);
    for (size_t k = 0; k < estimates.size(); ++k) value += c.estimates.at(k) * estimates[k][i];
    return value;
  }

  void take(const noise::SamplerStep& step, size_t history) {
    Numbers estimate, next, next_base = base;
    for (size_t i = 0; i < 4; ++i) {
      output[i] = .5 * step.input_scale * sample[i] + .1 + .0002 * step.time;
      estimate[i] = step.estimate.sample * sample[i] + step.estimate.output * output[i];
    }
    estimates.push_front(estimate);
    for (size_t i = 0; i < 4; ++i) {
      next[i] = sum(step.next, i);
      if (step.next_base) next_base[i] = sum(*step.next_base, i);
    }
    sample = next, base = next_base;
    if (!step.keeps_estimate) estimates.pop_front();
    if (estimates.size() > history) estimates.pop_back();
    ++evaluation;
  }
};

void draw(const noise::SamplerPlan& plan) {
  Numbers start;
  for (size_t i = 0; i < 4; ++i) start[i] = plan.start_scale * std::sin(.3 * static_cast<double>(i) + .1);
  Drawn drawn{start, start};
  for (const noise::SamplerStep& step : plan.steps) drawn.take(step, plan.history);
  std::printf("%.17g %.17g %.17g %.17g\n", drawn.sample[0], drawn.sample[1], drawn.sample[2], drawn.sample[3]);
}

}  // namespace

int main() {
  noise::SamplerOptions options;
  std::string target;
  bool zero_snr = false;
  while (std::cin >> options.sampler >> options.spacing >> target >> options.karras >> options.steps >> zero_snr >>
         options.steps_offset >> options.set_alpha_to_one) {
    try {
      options.target = noise::target_named(target);
      draw(noise::plan_sampler(noise::NoiseLevels{{.zero_terminal_snr = zero_snr}}, options));
    } catch (const Error&) {
      std::puts("refused");
    }
  }
  return 0;
}
