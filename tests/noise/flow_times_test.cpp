// Times of flow models: distributions, shifts for large pictures, refusals.
#include "colossal/noise/flow_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "colossal/base/error.h"
#include "noise/golden.h"

namespace colossal::noise::flow_times_test {
namespace {

using golden::expect_digits;
using ::testing::HasSubstr;

std::string refusal(const FlowOptions& options, Target target) {
  try {
    check_flow_options(options, target);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FlowTimes, ShiftForLargePictures) {
  const double flux = automatic_shift("flux", {.tokens = 1024});
  expect_digits(std::log(flux), 0.63);
  expect_digits(shifted(0.5, flux), 0.6524894621927);
  const double clip = automatic_shift("open-sora-1", {.pixels = 720 * 1280, .frames = 120});  // of 408 frames
  expect_digits(clip, 20.53959590644);
  expect_digits(shifted(0.5, clip), 0.9535738737002);
  expect_digits(automatic_shift("open-sora-1", {.pixels = 512 * 512}), 1);
  expect_digits(automatic_shift("open-sora-2", {.frames = 33, .tokens = 2304}), 11.87209613618);
  for (const auto& [rule, shift] : {std::pair{"", 1.0}, {"flux-schnell", 1.0}, {"sd3", 3.0}})
    EXPECT_EQ(automatic_shift(rule, {.pixels = 1 << 20, .frames = 9, .tokens = 4096}), shift);
  for (const auto& [rule, spacing] : {std::pair{"", ""},
                                      {"sd3", ""},
                                      {"flux", "trailing"},
                                      {"flux-schnell", "trailing"},
                                      {"open-sora-2", "trailing"}})
    EXPECT_EQ(automatic_spacing(rule), spacing);
}

TEST(FlowTimes, RefuseUnknownRulesOfShifts) {
  try {
    automatic_shift("open-sora-3", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean `open-sora-"));
  }
}

TEST(FlowTimes, FollowTheirDistributions) {
  expect_digits(mode_time(0.25), 0.6164161261347);
  EXPECT_DOUBLE_EQ(flow_time({}, 0.25, 1), 0.25);
  expect_digits(flow_time({.times = "mode"}, 0.25, 1), 0.6164161261347);
  expect_digits(flow_time({.times = "logit-normal"}, 0.25, 1), 1 / (1 + std::exp(-1.0)));
  expect_digits(flow_time({.times = "uniform", .shift = 3}, 0.5, 0), 0.75);
  EXPECT_EQ(flow_time({.times = "mode", .shift = 3}, 0, 0), 1);
}

TEST(FlowTimes, RefuseKeysWithoutFlow) {
  EXPECT_EQ(refusal({.times = "mode", .shift = 3}, Target::Flow), "");
  EXPECT_EQ(refusal({}, Target::V), "");
  EXPECT_THAT(refusal({.shift = 3}, Target::V), HasSubstr("[diffusion] times and shift need target = \"flow\""));
  EXPECT_THAT(refusal({.times = "mode"}, Target::Edm), HasSubstr("with target = \"edm\""));
  EXPECT_THAT(refusal({.times = "logitnormal"}, Target::Flow), HasSubstr("did you mean `logit-normal`?"));
  EXPECT_THAT(refusal({.shift = 0}, Target::Flow), HasSubstr("shift must be a positive number: got 0"));
}

}  // namespace
}  // namespace colossal::noise::flow_times_test
