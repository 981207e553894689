// Failures, checkpoints and late ranks, against values computed by hand.
#include "colossal/plan/failures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "colossal/base/error.h"

namespace colossal::plan::failures_test {
namespace {

using ::testing::HasSubstr;

constexpr double kRounding = 8 * std::numeric_limits<double>::epsilon();

std::string fault_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "cluster");
    return error.message();
  }
  return "";
}

TEST(Failures, ComputesTheBestInterval) {
  const Failures failures{.device_hours = 1000, .restart = 180};
  // 100 devices: a failure each 10 h = 36,000 s. sqrt(2 * 20 * 36000) = 1200 s.
  EXPECT_NEAR(failures.seconds_between(100), 36000, kRounding * 36000);
  EXPECT_NEAR(failures.best_interval(100, 20), 1200, kRounding * 1200);
  // 1 - 20/1200 - 1200/72000 - 180/36000
  EXPECT_NEAR(failures.goodput(100, 20, 1200), 1 - 1.0 / 60 - 1.0 / 60 - 1.0 / 200, kRounding);
}

TEST(Failures, LosesMoreAtOtherIntervals) {
  const Failures failures;
  const double best = failures.best_interval(16384, 30);
  for (const double factor : {0.25, 0.5, 0.9, 1.1, 2.0, 4.0})
    EXPECT_LT(failures.goodput(16384, 30, factor * best), failures.goodput(16384, 30, best));
}

TEST(Failures, MatchesLlama3) {
  // 54 days of 16,384 GPUs with 419 unexpected interruptions: one in 54 * 24 * 3600 / 419 seconds, up to the rounding
  // of the hours to hundreds.
  const double by_report = 54.0 * 24 * 3600 / 419;
  EXPECT_NEAR(Failures().seconds_between(16384), by_report, by_report * 50 / 50676);
  // Checkpoints of 20 s at the best interval lose sqrt(2 * 20 / 11140) = 0.06, restarts 300 / 11140 = 0.027.
  EXPECT_GT(Failures().goodput(16384, 20, Failures().best_interval(16384, 20)), 0.9);  // as it was reported
}

TEST(Failures, NeverFallsBelowZero) { EXPECT_EQ(Failures{.device_hours = 1e-3}.goodput(1024, 30, 60), 0); }

TEST(Failures, RefusesNumbersWithoutMeaning) {
  const Failures failures;
  EXPECT_THAT(fault_of([&] { failures.seconds_between(0); }), HasSubstr("devices must be at least 1: got 0"));
  EXPECT_THAT(fault_of([&] { failures.best_interval(8, 0); }), HasSubstr("seconds of a checkpoint must be above 0"));
  EXPECT_THAT(fault_of([&] { failures.goodput(8, 1, 0); }), HasSubstr("seconds between checkpoints must be above 0"));
  EXPECT_THAT(fault_of([] { slowest_of(0, 1, 1); }), HasSubstr("ranks must be at least 1: got 0"));
}

TEST(Failures, FindsTheSlowestRank) {
  EXPECT_EQ(slowest_of(1, 2, 0.5), 2);
  EXPECT_NEAR(slowest_of(1024, 2, 0.5), 2 + 0.5 * std::sqrt(20 * std::log(2.0)), kRounding * 4);  // ln 1024 = 10 ln 2
}

TEST(Failures, SumsUpLostTime) {
  const Failures failures{.device_hours = 1000, .restart = 180};
  // As ComputesTheBestInterval: a failure each 36,000 s, a checkpoint of 20 s each 1200 s.
  const LostTime lost = lost_time(failures, 100, 20, 4, 0.5);
  EXPECT_EQ(lost.checkpoint_interval, failures.best_interval(100, 20));
  EXPECT_EQ(lost.goodput, failures.goodput(100, 20, lost.checkpoint_interval));
  EXPECT_EQ(lost.step_with_late_ranks, slowest_of(100, 4, 0.5));
  const std::string text = describe_failures(lost);
  EXPECT_THAT(text, HasSubstr("One of 100 devices fails every 10h 00m on average."));
  EXPECT_THAT(text, HasSubstr("A checkpoint takes 20s; one every 20m 00s of training"));
  EXPECT_THAT(text, HasSubstr("(300 steps)"));
  EXPECT_THAT(text, HasSubstr("Goodput: 96.2 %"));  // 1 - 1/60 - 1/60 - 1/200 = 0.96167
  // 0.5 sqrt(2 ln 100) / 4 = 0.3794
  EXPECT_THAT(text, HasSubstr("Late ranks make a step 37.9 % longer."));
}

TEST(Failures, LosesRestartsAloneWithoutTheTimeOfACheckpoint) {
  const Failures failures{.device_hours = 1000, .restart = 180};
  const LostTime lost = lost_time(failures, 100, 0, 4);
  EXPECT_NEAR(lost.goodput, 1 - 1.0 / 200, kRounding);
  EXPECT_EQ(lost.checkpoint_interval, 0);
  EXPECT_EQ(lost.step_with_late_ranks, lost.step);
  const std::string text = describe_failures(lost);
  EXPECT_EQ(text.find("checkpoint"), std::string::npos);
  EXPECT_EQ(text.find("Late"), std::string::npos);
  EXPECT_THAT(fault_of([&] { lost_time(failures, 100, -1, 4); }), HasSubstr("must be 0 or more: got -1"));
  EXPECT_THAT(fault_of([&] { lost_time(failures, 0, 1, 4); }), HasSubstr("devices must be at least 1"));
}

}  // namespace
}  // namespace colossal::plan::failures_test
