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
  expect_digits(std::log(flux_shift(1024)), 0.63);
  expect_digits(shifted(0.5, flux_shift(1024)), 0.6524894621927);
  expect_digits(open_sora_1_shift(720 * 1280, 408), 20.53959590644);
  expect_digits(open_sora_1_shift(512 * 512, 33), std::sqrt(5));  // one whole group of 17 frames
  expect_digits(shifted(0.5, open_sora_1_shift(720 * 1280, 408)), 0.9535738737002);
  expect_digits(open_sora_2_shift(2304, 33), 11.87209613618);
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
