// Child processes with limits on memory and time, for any use of their output.
#include "colossal/cli/bench/limited_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace colossal::cli::limited_process_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kMuch = int64_t{1} << 40;

LimitedRun shell(const std::string& script, double seconds, int64_t max_resident = kMuch) {
  return run_limited({"/bin/sh", "-c", script}, max_resident, seconds);
}

TEST(LimitedProcess, ReportsOutputAndStatus) {
  const LimitedRun well = shell("echo one; echo two >&2", 600);
  EXPECT_EQ(well.status, 0);
  EXPECT_EQ(well.output, "one\n");
  EXPECT_EQ(well.last_words, "two");
  EXPECT_EQ(well.why_not(), "");
  EXPECT_EQ(shell("echo no >&2; exit 3", 600).why_not(), "no");
  EXPECT_EQ(shell("exit 3", 600).why_not(), "ended with status 3");
  EXPECT_EQ(shell("head -c 300000 /dev/zero", 600).output.size(), 300000u) << "more than a pipe holds";
}

// The process closes its output long before it ends.
TEST(LimitedProcess, EnforcesTheTimeLimitAfterOutputIsClosed) {
  const LimitedRun run = shell("exec >&- 2>&-; exec sleep 1000", 0.2);
  EXPECT_TRUE(run.took_too_long);
  EXPECT_EQ(run.status, 128 + 9);
  EXPECT_EQ(run.why_not(), "more than 0.2 seconds");
}

TEST(LimitedProcess, EnforcesTheMemoryLimitAfterOutputIsClosed) {
  const LimitedRun run = shell("exec >&- 2>&-; exec sleep 1000", 600, 1);
  EXPECT_TRUE(run.took_too_much);
  EXPECT_THAT(run.why_not(), HasSubstr("more than 1 B resident"));
}

// A grandchild keeps the output open for a long time.
TEST(LimitedProcess, ReturnsWithoutWaitingForGrandchildren) {
  const LimitedRun run = shell("sleep 1000 & echo $!", 600);
  EXPECT_EQ(run.status, 0);
  ASSERT_FALSE(run.output.empty());
  EXPECT_EQ(shell("kill " + run.output, 600).status, 0) << "it is still there";
}

}  // namespace
}  // namespace colossal::cli::limited_process_test
