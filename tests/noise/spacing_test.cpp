// The times and deviations that samplers visit.
#include "colossal/noise/spacing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "noise/golden.h"

namespace colossal::noise::spacing_test {
namespace {

using golden::expect_digits;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const TimesRequest& request) {
  try {
    spaced_times(request);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Spacing, ChoosesWholeTimes) {
  EXPECT_THAT(spaced_times({.spacing = Spacing::Leading, .steps = 5, .offset = 1}), ElementsAre(801, 601, 401, 201, 1));
  EXPECT_THAT(spaced_times({.spacing = Spacing::Trailing, .steps = 5}), ElementsAre(999, 799, 599, 399, 199));
  EXPECT_THAT(spaced_times({.spacing = Spacing::Linspace, .steps = 5}), ElementsAre(999, 749, 500, 250, 0));
  const std::vector<double> fifty = spaced_times({.spacing = Spacing::Leading, .steps = 50, .offset = 1});
  EXPECT_EQ(fifty.front(), 981);
  EXPECT_EQ(fifty.back(), 1);
}

TEST(Spacing, RoundsHalfNumbersAsDiffusersDoes) {
  EXPECT_THAT(spaced_times({.spacing = Spacing::Linspace, .steps = 3}), ElementsAre(999, 500, 0));
  // 937.5 and 812.5 are rounded to even numbers.
  const std::vector<double> sixteen = spaced_times({.spacing = Spacing::Trailing, .steps = 16});
  EXPECT_EQ(sixteen[1], 937);
  EXPECT_EQ(sixteen[3], 811);
  // 937.5 again, but the sum of three rounded distances is below it.
  EXPECT_EQ(spaced_times({.spacing = Spacing::Trailing, .steps = 48})[3], 936);
}

TEST(Spacing, ReadsPointsAsTheFamiliesOfSamplersDo) {
  EXPECT_THAT(spaced_times({.spacing = Spacing::Linspace, .steps = 5, .points = Points::Fractional}),
              ElementsAre(999, 749.25, 499.5, 249.75, 0));
  EXPECT_THAT(spaced_times({.spacing = Spacing::Linspace, .steps = 5, .points = Points::Inner}),
              ElementsAre(999, 799, 599, 400, 200));
  EXPECT_THAT(spaced_times({.spacing = Spacing::Leading, .steps = 4, .offset = 1, .points = Points::Inner}),
              ElementsAre(801, 601, 401, 201));
}

TEST(Spacing, VisitsEveryLevelOnceAtMost) {
  for (const std::string& name : spacing_names())
    for (const int64_t steps : {1, 2, 7, 61, 999, 1000}) {
      const std::vector<double> times = spaced_times({.spacing = spacing_named(name), .steps = steps});
      ASSERT_EQ(times.size(), static_cast<size_t>(steps));
      EXPECT_LE(times.front(), 999);
      EXPECT_GE(times.back(), 0);
      for (size_t i = 1; i < times.size(); ++i) EXPECT_LT(times[i], times[i - 1]) << name << " " << steps;
    }
}

TEST(Spacing, RefusesTimesOutsideTheTable) {
  EXPECT_THAT(refusal({.steps = 1001}), HasSubstr("[draw] steps must be between 1 and 1000"));
  EXPECT_THAT(refusal({.steps = 0}), HasSubstr("got 0"));
  EXPECT_THAT(refusal({.steps = 1000, .points = Points::Inner}), HasSubstr("between 1 and 999"));
  EXPECT_THAT(refusal({.steps = 1000, .offset = 1}), HasSubstr("steps_offset must keep the times between 0 and 999"));
  EXPECT_THAT(refusal({.offset = -1}), HasSubstr("steps_offset"));
  EXPECT_THROW(spacing_named("trail"), Error);
}

TEST(KarrasSigmas, HaveTheTimesOfTheTable) {
  const SigmaTable table(NoiseLevels({}));
  const std::vector<double> sigmas = karras_sigmas(5, table.sigma_at(999), table.sigma_at(0));
  const std::vector<double> wanted{14.61464122933, 4.796534827124, 1.274100208978, 0.2479499027108, 0.02916715815172};
  const std::vector<double> times{999, 785.9536318485, 427.4887041, 58.89096639383, 0};
  for (size_t i = 0; i < wanted.size(); ++i) {
    expect_digits(sigmas[i], wanted[i]);
    EXPECT_NEAR(table.time_of(sigmas[i]), times[i], 1e-9);
  }
  EXPECT_THAT(karras_sigmas(1, 8, 2), ElementsAre(::testing::DoubleNear(8, 1e-14)));
}

TEST(SigmaTable, InterpolatesBetweenTimes) {
  const NoiseLevels levels({});
  const SigmaTable table(levels);
  expect_digits(table.sigma_at(10.25), 0.75 * levels.sigma(10) + 0.25 * levels.sigma(11));
  expect_digits(table.time_of(std::sqrt(levels.sigma(10) * levels.sigma(11))), 10.5);
  EXPECT_EQ(table.sigma_at(2000), table.sigma_at(999));
  EXPECT_EQ(table.time_of(1000), 999);
  EXPECT_EQ(table.time_of(0), 0);
}

TEST(SigmaTable, StaysFiniteWithoutTerminalSignal) {
  const SigmaTable table(NoiseLevels({.schedule = "linear", .zero_terminal_snr = true}));
  expect_digits(table.sigma_at(999), std::sqrt(std::ldexp(1, 24) - 1));
  // The level below it has even less signal here; the time is still that of the last level.
  EXPECT_GT(table.sigma_at(998), table.sigma_at(999));
  EXPECT_EQ(table.time_of(table.sigma_at(999)), 999);
}

}  // namespace
}  // namespace colossal::noise::spacing_test
