// Tables of noise levels: published schedules to all digits, the terminal level without signal, refusals.
#include "colossal/noise/noise_levels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "colossal/base/error.h"
#include "noise/golden.h"

namespace colossal::noise::noise_levels_test {
namespace {

using golden::expect_digits;
using ::testing::HasSubstr;

std::string refusal(const NoiseOptions& options) {
  try {
    const NoiseLevels levels(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(NoiseLevels, HasTheTableOfStableDiffusion) {
  const NoiseLevels levels({});
  EXPECT_EQ(levels.steps(), 1000);
  expect_digits(levels.abar(0), 0.99915);
  expect_digits(levels.abar(1), 0.9982960278385);
  expect_digits(levels.abar(500), 0.276332683823);
  expect_digits(levels.abar(999), 0.004660098513077);
  expect_digits(levels.sigma(999), 14.61464122933);
}

TEST(NoiseLevels, HasLinearAndCosineTables) {
  const NoiseLevels linear({.schedule = "linear"}), cosine({.schedule = "cosine"});
  expect_digits(linear.abar(499), 0.07858724288178);
  expect_digits(linear.abar(999), 4.035829765376e-05);
  expect_digits(cosine.abar(499), 0.4938435904406);
  expect_digits(cosine.abar(998), 2.428766907035e-06);
}

TEST(NoiseLevels, EndsWithoutSignalWithZeroTerminalSnr) {
  const NoiseLevels levels({.zero_terminal_snr = true}), plain({});
  expect_digits(levels.abar(0), plain.abar(0));
  expect_digits(levels.abar(500), 0.2410187827573);
  EXPECT_NEAR(levels.abar(998), 1.967888056621e-07, 1e-17);
  EXPECT_EQ(levels.abar(999), 0);
  EXPECT_EQ(levels.snr(999), 0);
  EXPECT_TRUE(std::isinf(levels.sigma(999)));
}

TEST(NoiseLevels, MixesToUnitVariance) {
  const NoiseLevels levels({.schedule = "linear", .beta_start = 0.001, .beta_end = 0.5, .steps = 10});
  for (int64_t t = 0; t < levels.steps(); ++t) {
    const Mix mix = levels.mix(t);
    expect_digits(mix.signal * mix.signal + mix.noise * mix.noise, 1);
    expect_digits(levels.snr(t), 1 / (levels.sigma(t) * levels.sigma(t)));
  }
  expect_digits(levels.abar(0), 0.999);
  expect_digits(levels.abar(9) / levels.abar(8), 0.5);
}

TEST(NoiseLevels, RefusesOptionsThatMakeNoTable) {
  EXPECT_THAT(refusal({.schedule = "scaled_linear"}), HasSubstr("did you mean `scaled-linear`?"));
  EXPECT_THAT(refusal({.schedule = "cosine", .beta_end = 0.02}), HasSubstr("has no beta_start and beta_end"));
  EXPECT_THAT(refusal({.beta_start = 0.5}), HasSubstr("must not fall: got 0.5 and 0.012"));
  EXPECT_THAT(refusal({.beta_end = 1}), HasSubstr("[diffusion] beta_start and beta_end must be in (0, 1)"));
  EXPECT_THAT(refusal({.beta_start = std::nan("")}), HasSubstr("got nan"));
  EXPECT_THAT(refusal({.steps = 0}), HasSubstr("steps must be between 1 and"));
  EXPECT_THAT(refusal({.steps = 1, .zero_terminal_snr = true}), HasSubstr("steps must be between 2 and"));
  EXPECT_THROW(NoiseLevels({}).abar(1000), Error);
  EXPECT_THROW(NoiseLevels({}).abar(-1), Error);
}

}  // namespace
}  // namespace colossal::noise::noise_levels_test
