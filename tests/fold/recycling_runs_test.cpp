// Steps of runs that fold, in fp64: in every layout that they have, and against a plain loop over passes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "colossal/fold/recycling_rule.h"
#include "fold/folding_runs.h"
#include "support/thrown_message.h"

namespace colossal::fold::recycling_runs_test {
namespace {

void expect_near(const std::vector<double>& have, const std::vector<double>& want) {
  ASSERT_EQ(have.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(have[i], want[i], 1e-10 * (1 + std::abs(want[i]))) << i;
}

TEST(RecyclingRuns, GiveTheSameInEveryLayout) {
  const run::Program program = folding_program();
  const std::vector<double> want = test::run_course(folding_run(), program);
  ASSERT_EQ(want.size(), 3 * 4 + 3u);
  EXPECT_GT(want[0], 0);
  for (const std::vector<std::string>& layout :
       std::vector<std::vector<std::string>>{{"--parallel.data=2"},
                                             {"--parallel.data=2", "--parallel.zero=3"},
                                             {"--training.accumulate=2", "--memory.recompute=block"},
                                             {"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"}}) {
    SCOPED_TRACE(layout.front());
    expect_near(test::run_course(folding_run(layout), program), want);
  }
}

}  // namespace
}  // namespace colossal::fold::recycling_runs_test
