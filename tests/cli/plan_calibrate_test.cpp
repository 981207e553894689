// `colossal plan --calibrate`: its options and the numbers of ranks. tests/dist/plan_calibrate_test.cpp runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "colossal/cli/plan.h"

namespace colossal::cli::plan_calibrate_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PlanCalibrate, ChoosesNumbersOfRanks) {
  EXPECT_THAT(calibrated_ranks(1), ElementsAre(1));
  EXPECT_THAT(calibrated_ranks(2), ElementsAre(1, 2));
  EXPECT_THAT(calibrated_ranks(6), ElementsAre(1, 2, 6));
  EXPECT_THAT(calibrated_ranks(7), ElementsAre(1, 7));
  EXPECT_THAT(calibrated_ranks(96), ElementsAre(1, 2, 4, 8, 16, 32, 96));
  EXPECT_THAT(calibrated_ranks(256), ElementsAre(1, 2, 4, 8, 16, 32, 64, 128));
}

TEST(PlanCalibrate, RefusesBadOptions) {
  EXPECT_THROW(plan_calibrate({"--calibrate", "--seconds", "0"}), UsageError);
  EXPECT_THROW(plan_calibrate({"--calibrate", "--device", "gpu"}), UsageError);
  EXPECT_THROW(plan_calibrate({"--calibrate", "--search"}), UsageError);
}

TEST(PlanCalibrate, DescribesItsOptions) { EXPECT_THAT(help_of(plan_calibrate, "--help"), HasSubstr("--to")); }

}  // namespace
}  // namespace colossal::cli::plan_calibrate_test
