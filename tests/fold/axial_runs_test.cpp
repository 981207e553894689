// Steps of AlphaFold 2 whose pairs and alignments ranks cut, in fp64 at 13 residues and 5 rows: every layout gives the
// losses, gradients and updates of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "fold/folding_runs.h"
#include "support/thrown_message.h"

namespace colossal::fold::axial_runs_test {
namespace {

std::string axial(int ranks) { return concat("--parallel.sequence.size=", ranks); }

/// Returns a run of a small AlphaFold 2 with all terms.
run::Config alphafold_run(const std::vector<std::string>& flags = {}, bool is_axial = true) {
  std::vector<std::string> own{"--model.name=alphafold2-tiny",
                               "--model.pae=true",
                               "--model.alignment_dropout=0.1",
                               "--model.pair_dropout=0.1",
                               "--folding.crop=13",
                               "--folding.clusters=5",
                               "--folding.extra=7",
                               "--folding.passes=2",
                               "--folding.weights.masked_msa=2",
                               "--folding.weights.resolved=0.01",
                               "--training.batch_size=2"};
  if (is_axial) own.push_back("--parallel.sequence.mode=axial");
  return folding_run(test::joined(own, flags));
}

void expect_course(const std::vector<double>& have, const std::vector<double>& want) {
  ASSERT_EQ(have.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(have[i], want[i], 1e-10 * (1 + std::abs(want[i]))) << i;
}

TEST(AxialRuns, GiveTheSameInEveryLayout) {
  const run::Program program = with_folding(run::built_in());
  const std::vector<double> want = test::run_course(alphafold_run({}, false), program);
  EXPECT_GT(want.at(0), 0);
  const std::vector<std::vector<std::string>> layouts{
      {axial(2), "--parallel.data=2", "--parallel.zero=3"},
      {axial(3), "--memory.recompute=block", "--parallel.sequence.overlap=false"},
      {axial(4)},
      {axial(2), "--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"}};
  for (const std::vector<std::string>& layout : layouts) {
    SCOPED_TRACE(join(layout));
    expect_course(test::run_course(alphafold_run(layout), program), want);
  }
}

TEST(AxialRuns, ClipTheWholeGradientOfAChain) {
  const run::Program program = with_folding(run::built_in());
  const std::string clip = "--folding.clip_sample=0.5";
  const std::vector<double> want = test::run_course(alphafold_run({clip}, false), program);
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {axial(2), "--parallel.data=2", "--parallel.zero=3"}, {axial(3), "--training.accumulate=2"}}) {
    SCOPED_TRACE(join(layout));
    expect_course(test::run_course(alphafold_run(test::joined(layout, {clip})), program), want);
  }
}

TEST(AxialRuns, GiveTheSameForEsmFold) {
  const run::Program program = with_folding(run::built_in());
  const auto esmfold_run = [](const std::vector<std::string>& flags) {
    return folding_run(test::joined({"--model.name=esmfold-tiny", "--model.dropout=0.1", "--folding.crop=13",
                                     "--folding.passes=2", "--training.batch_size=2"},
                                    flags));
  };
  const std::vector<double> want = test::run_course(esmfold_run({}), program);
  EXPECT_GT(want.at(0), 0);
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {axial(2), "--parallel.zero=3", "--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"},
           {axial(3), "--memory.recompute=block"}}) {
    SCOPED_TRACE(join(layout));
    expect_course(test::run_course(esmfold_run(test::joined({"--parallel.sequence.mode=axial"}, layout)), program),
                  want);
  }
}

TEST(AxialRuns, RefuseOtherLayouts) {
  const run::Program program = with_folding(run::built_in());
  const auto message = [&](const std::vector<std::string>& flags, bool is_axial) {
    return test::thrown_message([&] { test::run_course(alphafold_run(flags, is_axial), program, 1); });
  };
  EXPECT_THAT(message({"--parallel.tensor.size=2"}, false),
              testing::HasSubstr("tensor.size must be 1 for a folding model: got 2; its pairs have few heads"));
  EXPECT_THAT(message({axial(2), "--parallel.sequence.mode=ring"}, false),
              testing::HasSubstr("the sequence.mode of a folding model must be axial: got ring for alphafold2"));
  EXPECT_THAT(message({axial(4), "--folding.crop=3"}, true),
              testing::HasSubstr("parallel.sequence.size must be at most the residues of a chain (in training "
                                 "folding.crop): got 4 ranks for 3 residues"));
  distributed::ParallelConfig layout;
  layout.sequence = {.size = 2, .mode = "axial"};
  const models::ModelShape gpt2 = models::built_in().resolve({.name = "gpt2-small"});
  EXPECT_THAT(
      test::thrown_message([&] { distributed::check_attention_axes(layout, gpt2); }),
      testing::HasSubstr("sequence.mode axial cuts the pairs and alignments of a folding model: gpt2 has none"));
}

}  // namespace
}  // namespace colossal::fold::axial_runs_test
