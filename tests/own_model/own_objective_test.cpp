// The program examples/own_objective with its own config: one process and eight ranks, its config table and its metric.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/file.h"
#include "colossal/report/metrics.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace colossal::test::own_objective_test {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr char kConfig[] = "examples/own_objective/own_objective.toml";

/// Runs the program in the root folder of the repository, because the paths in its config are relative to it.
Finished run(const Words& words) {
  Words command{"sh", "-c", "cd \"$0\" && exec \"$@\"", source_dir(), example_program("own_objective")};
  command.insert(command.end(), words.begin(), words.end());
  return run_process({.command = command, .limit = std::chrono::seconds(120)});
}

class OwnObjectiveProgram : public testing::Test {
 protected:
  std::vector<double> losses(const std::string& name, const Words& flags) const {
    Words words{"train",
                kConfig,
                "--training.steps=12",
                "--precision.mode=fp64",
                "--run.device=cpu",
                "--run.matmul=mkl",
                "--run.folder=" + (folder / name)};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished outcome = run(words);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return report::read_metrics(folder / (name + "/metrics.jsonl")).values("loss", 0);
  }
  const TemporaryFolder folder;
};

TEST_F(OwnObjectiveProgram, EqualsOneRankOnEightRanks) {
  const std::vector<double> want = losses("one", {"--parallel.data=1"});
  ASSERT_EQ(want.size(), 12u);
  EXPECT_NE(want.front(), want.back());
  const std::vector<double> got =
      losses("eight", {"--parallel.data=2", "--parallel.tensor=2", "--parallel.pipeline=2", "--parallel.zero=1"});
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << "step " << i + 1;
  EXPECT_THAT(read_file(folder / "one/report.html", 1 << 26), HasSubstr("Error on held-out rows"));
}

TEST_F(OwnObjectiveProgram, TrainsAsPlanned) {
  const Finished check =
      run({"plan", kConfig, "--check", "--run.device=cpu", "--parallel.data=2", "--parallel.tensor=2"});
  EXPECT_EQ(check.status, 0) << check.output;
  EXPECT_THAT(check.output, HasSubstr("numbers of calls and of bytes sent are equal, which is all of them"));
}

TEST_F(OwnObjectiveProgram, ListsAndRefusesKeysOfItsTable) {
  const Finished help = run({"help", "config", "regression"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.output, testing::AllOf(HasSubstr("[regression]"), HasSubstr("target = \"distance\"")));
  const Finished misspelt = run({"train", kConfig, "--regression.targt=speed", "--run.folder=" + (folder / "no")});
  EXPECT_EQ(misspelt.status, 1);
  EXPECT_THAT(misspelt.output, HasSubstr("unknown key `regression.targt`, did you mean `regression.target`?"));
  const Finished unknown = run({"train", kConfig, "--regresion.unit=km", "--run.folder=" + (folder / "no")});
  EXPECT_THAT(unknown.output, HasSubstr("unknown key `regresion.unit`, did you mean `regression.unit`?"));
  const Finished of_data = run({"help", "config", "data"});
  EXPECT_THAT(of_data.output, HasSubstr("[data]\n  keys of the objective regression\n  separator = \",\"\n"));
  const Finished refused = run({"train", kConfig, "--data.separator=;", "--run.folder=" + (folder / "no")});
  EXPECT_THAT(refused.output, HasSubstr("separator"));
  const Finished foreign = run({"train", kConfig, "--data.masked=0.5", "--run.folder=" + (folder / "no")});
  EXPECT_THAT(foreign.output, HasSubstr("`data.masked` belongs to the objective masked-token, and this run has "
                                        "regression: got 0.5; leave it out"));
}

}  // namespace
}  // namespace colossal::test::own_objective_test
