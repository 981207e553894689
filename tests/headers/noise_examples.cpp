// The examples at the beginning of headers of noise. tests/base/examples_test.cpp compares them with the headers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <vector>

#include "colossal/noise/flow_times.h"
#include "colossal/noise/guidance.h"
#include "colossal/noise/loss_weight.h"
#include "colossal/noise/noise_levels.h"
#include "colossal/noise/sampler.h"
#include "colossal/noise/spacing.h"
#include "colossal/noise/target.h"

namespace colossal::header_examples {
namespace {

TEST(HeaderExamples, NoiseLevels) {
  const double pixel = 0.5, normal = 0;
  const noise::NoiseLevels levels({.schedule = "scaled-linear", .steps = 1000});
  const double signal = levels.signal(500), amount = levels.noise(500);
  const double noised = signal * pixel + amount * normal;
  EXPECT_EQ(noised, signal / 2);
}

TEST(HeaderExamples, Target) {
  const double pixel = 0.5, normal = -0.3;
  const noise::NoiseLevels levels({});
  const noise::Level level = noise::table_level(levels, 500);
  const noise::Mix wanted = noise::training_target(noise::Target::V, level.mix);
  const double target = wanted.signal * pixel + wanted.noise * normal;

  const double noised = level.mix.signal * pixel + level.mix.noise * normal, output = target;
  const noise::Reading reading = noise::read_sample(noise::Target::V, level.mix);
  const double guess = reading.sample * noised + reading.output * output;
  EXPECT_NEAR(guess, pixel, 1e-15);
}

TEST(HeaderExamples, LossWeight) {
  const noise::NoiseLevels levels({});
  const double weight = noise::min_snr_weight(noise::Target::Epsilon, levels.snr(100), 5);
  EXPECT_LT(weight, 1);
}

TEST(HeaderExamples, FlowTimes) {
  const double uniform = 0.5, normal = 0;
  const noise::FlowOptions options{.times = "logit-normal", .shift = 3};
  const double t = noise::flow_time(options, uniform, normal);
  EXPECT_DOUBLE_EQ(t, 0.75);
}

TEST(HeaderExamples, Guidance) {
  const double with_prompt = 2, without = 1;
  const noise::GuidanceFactors factors = noise::guidance_factors(7.5);
  const double guided = factors.conditional * with_prompt + factors.unconditional * without;
  EXPECT_EQ(guided, 8.5);
}

TEST(HeaderExamples, SamplerPlan) {
  const noise::NoiseLevels levels({});
  const auto normal = [] { return 1.0; };
  const auto model = [](double seen, double) { return seen; };
  const noise::SamplerPlan plan = noise::plan_sampler(levels, {.sampler = "dpm++2m", .steps = 25});
  double sample = plan.start_scale * normal(), base = sample;
  std::deque<double> estimates;  // the newest first
  for (const noise::SamplerStep& step : plan.steps) {
    const double output = model(step.input_scale * sample, step.time);
    estimates.push_front(step.estimate.sample * sample + step.estimate.output * output);
    if (step.clip > 0) estimates[0] = std::clamp(estimates[0], -step.clip, step.clip);
    const auto sum = [&](const noise::Combination& c, double fresh) {
      double value = c.sample * sample + c.base * base + c.output * output + c.noise * fresh;
      for (size_t i = 0; i < estimates.size(); ++i) value += c.estimates[i] * estimates[i];
      return value;
    };
    const double next = sum(step.next, step.next.noise > 0 ? normal() : 0);
    if (step.next_base) base = sum(*step.next_base, 0);
    sample = next;
    if (!step.keeps_estimate) estimates.pop_front();
    if (estimates.size() > plan.history) estimates.pop_back();
  }
  EXPECT_LT(sample, 1);
}

}  // namespace

// These examples are compiled, but not run.

void spacing_example(const noise::NoiseLevels& levels) {
  const std::vector<double> times =
      noise::spaced_times({.spacing = noise::Spacing::Leading, .levels = 1000, .steps = 50, .offset = 1});

  const noise::SigmaTable table(levels);
  for (const double sigma : noise::karras_sigmas(10, table.sigma_at(999), table.sigma_at(0)))
    std::printf("%g: %g\n", table.time_of(sigma), sigma);
  std::printf("%zu\n", times.size());
}

}  // namespace colossal::header_examples
