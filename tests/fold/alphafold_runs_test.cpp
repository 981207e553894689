// Steps of runs of AlphaFold 2 with alignments, in fp64: in every layout that they have.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "fold/folding_runs.h"

namespace colossal::fold::alphafold_runs_test {
namespace {

TEST(AlphaFoldRuns, GiveTheSameInEveryLayout) {
  const std::vector<std::string> flags{"--model.name=alphafold2-tiny",
                                       "--model.pae=true",
                                       "--model.layers=1",
                                       "--model.structure_layers=2",
                                       "--folding.clusters=3",
                                       "--folding.extra=2",
                                       "--folding.passes=2",
                                       "--folding.masked=0.3",
                                       "--folding.weights.masked_msa=2",
                                       "--folding.weights.resolved=0.01"};
  const run::Program program = folding_program();
  const std::vector<double> want = test::run_course(folding_run(flags), program, 2);
  ASSERT_EQ(want.size(), 2 * 4 + 3u);
  for (const std::vector<std::string>& layout :
       std::vector<std::vector<std::string>>{{"--parallel.data=2", "--parallel.zero=3", "--memory.recompute=block"},
                                             {"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"}}) {
    SCOPED_TRACE(layout.front());
    const std::vector<double> have = test::run_course(folding_run(test::joined(flags, layout)), program, 2);
    ASSERT_EQ(have.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(have[i], want[i], 1e-10 * (1 + std::abs(want[i]))) << i;
  }
}

}  // namespace
}  // namespace colossal::fold::alphafold_runs_test
