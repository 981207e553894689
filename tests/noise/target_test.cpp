// Targets of training, the way back to picture and noise, weights of the loss, and guidance.
#include "colossal/noise/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/noise/guidance.h"
#include "colossal/noise/loss_weight.h"
#include "noise/golden.h"

namespace colossal::noise::target_test {
namespace {

using golden::expect_digits;
using golden::model;
using golden::noise_of;
using golden::picture;
using ::testing::HasSubstr;

const NoiseLevels kLevels{NoiseOptions{}};

double noised(const Mix& mix, int i) { return mix.signal * picture(i) + mix.noise * noise_of(i); }

/// Returns the mean squared error of the model on 16 numbers.
double loss(Target target, const Level& level) {
  const Mix wanted = training_target(target, level.mix);
  double sum = 0;
  for (int i = 0; i < 16; ++i) {
    const double output = model(input_scale(target, level.mix) * noised(level.mix, i), level.time);
    sum += std::pow(output - wanted.signal * picture(i) - wanted.noise * noise_of(i), 2);
  }
  return sum / 16;
}

TEST(Target, GivesTheLossesOfEpsilonVAndSample) {
  const Level level = table_level(kLevels, 500);
  expect_digits(noised(level.mix, 0), 0.8862090755103);
  expect_digits(noised(level.mix, 15), -0.3918840245921);
  expect_digits(loss(Target::Epsilon, level), 0.3237965030879);
  expect_digits(loss(Target::V, level), 0.8174234150521);
  expect_digits(loss(Target::V, level) * min_snr_weight(Target::V, kLevels.snr(500), 5), 0.2258808061011);
  expect_digits(loss(Target::Sample, level), 0.5601452800959);
}

TEST(Target, GivesTheLossOfFlow) {
  Level level = flow_level(0.7);
  EXPECT_DOUBLE_EQ(level.time, 700);
  level.time = 0;
  expect_digits(loss(Target::Flow, level), 1.375916288477);
}

TEST(Target, HasTheFactorsOfEdm) {
  const EdmFactors c = edm_factors(80);
  expect_digits(c.skip, 3.90609741807e-05);
  expect_digits(c.out, 0.4999902346611);
  expect_digits(c.in, 0.01249975586653);
  expect_digits(c.noise, 1.095506658668);
  expect_digits(c.weight, 4.00015625);
  expect_digits(edm_training_sigma(0.5), std::exp(-0.6));
}

TEST(Target, LeadsBackToPictureAndNoise) {
  const std::vector<std::pair<Target, Mix>> cases{
      {Target::Epsilon, kLevels.mix(700)}, {Target::V, kLevels.mix(700)},   {Target::Sample, kLevels.mix(700)},
      {Target::Epsilon, {1, 9.5}},         {Target::V, {1, 9.5}},           {Target::Sample, {1, 9.5}},
      {Target::Edm, edm_level(0.3).mix},   {Target::Edm, kLevels.mix(700)}, {Target::Flow, flow_level(0.3).mix}};
  for (const auto& [target, mix] : cases) {
    SCOPED_TRACE(name_of(target));
    const Mix wanted = training_target(target, mix);
    const Reading x0 = read_sample(target, mix), e = read_noise(target, mix);
    for (int i = 0; i < 4; ++i) {
      const double output = wanted.signal * picture(i) + wanted.noise * noise_of(i);
      EXPECT_NEAR(x0.sample * noised(mix, i) + x0.output * output, picture(i), 1e-13);
      EXPECT_NEAR(e.sample * noised(mix, i) + e.output * output, noise_of(i), 1e-13);
    }
  }
}

TEST(Target, ScalesInputsOfAnyLevelAlike) {
  const double sigma = 3;
  const Mix exploding{1, sigma}, preserving{1 / std::sqrt(10.), sigma / std::sqrt(10.)};
  for (const Target target : {Target::Epsilon, Target::V, Target::Sample, Target::Edm})
    expect_digits(input_scale(target, exploding) * exploding.noise, input_scale(target, preserving) * preserving.noise);
  expect_digits(input_scale(Target::V, exploding), 1 / std::sqrt(10.));
  expect_digits(input_scale(Target::Edm, exploding), edm_factors(sigma).in);
  EXPECT_EQ(input_scale(Target::Flow, flow_level(0.3).mix), 1);
}

TEST(Target, KnowsTheNamesOfConfigs) {
  for (const std::string& name : target_names()) EXPECT_EQ(name_of(target_named(name)), name);
  try {
    target_named("epsilo");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("[diffusion] target must be one of epsilon, v, sample, flow, edm: got"));
    EXPECT_THAT(error.what(), HasSubstr("did you mean `epsilon`?"));
  }
}

TEST(Target, RefusesEpsilonWithoutTerminalSignal) {
  EXPECT_NO_THROW(check_target(Target::V, {.zero_terminal_snr = true}));
  EXPECT_NO_THROW(check_target(Target::Epsilon, {}));
  try {
    check_target(Target::Epsilon, {.zero_terminal_snr = true});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("set target = \"v\""));
  }
}

TEST(LossWeight, LimitsTheSnr) {
  const double few = kLevels.snr(500), much = kLevels.snr(100);
  expect_digits(few, 0.3818504410048);
  expect_digits(much, 8.45389371085);
  EXPECT_EQ(min_snr_weight(Target::Epsilon, few, 5), 1);
  expect_digits(min_snr_weight(Target::Epsilon, much, 5), 0.5914434426332);
  expect_digits(min_snr_weight(Target::V, few, 5), 0.276332683823);
  expect_digits(min_snr_weight(Target::V, much, 5), 0.5288826120672);
  expect_digits(min_snr_weight(Target::Sample, few, 5), few);
  EXPECT_EQ(min_snr_weight(Target::Sample, much, 5), 5);
  EXPECT_EQ(min_snr_weight(Target::V, 0, 5), 0);
  EXPECT_EQ(min_snr_weight(Target::Epsilon, much, 0), 1);
  EXPECT_EQ(min_snr_weight(Target::Edm, much, 0), 1);
  EXPECT_THROW(min_snr_weight(Target::Flow, much, 5), Error);
  EXPECT_THROW(min_snr_weight(Target::V, much, -1), Error);
}

double deviation(const std::vector<double>& values) {
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  for (const double value : values) squares += std::pow(value - mean, 2);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

TEST(Guidance, GivesBackPartOfTheDeviation) {
  std::vector<double> conditional, guided;
  const GuidanceFactors factors = guidance_factors(7.5);
  for (int i = 0; i < 8; ++i) {
    conditional.push_back(picture(i));
    guided.push_back(factors.conditional * picture(i) + factors.unconditional * std::cos(0.2 * i));
  }
  const double scale = rescale_factor(deviation(conditional), deviation(guided), 0.7);
  expect_digits(scale * guided.front(), -2.046906305287);
  expect_digits(scale * guided.back(), 1.764917139135);
}

}  // namespace
}  // namespace colossal::noise::target_test
