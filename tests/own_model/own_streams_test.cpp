// The program examples/own_streams, whose blocks read and change two hidden states.
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/report/metrics.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace colossal::test::own_streams_test {
namespace {

using Words = std::vector<std::string>;

class OwnStreams : public testing::Test {
 protected:
  /// Trains for 12 steps in fp64, in the root folder of the repository. Returns the metrics.
  report::RecordedSteps train(const std::string& name, const Words& flags) const {
    Words words{"env",
                "-C",
                source_dir(),
                program,
                "train",
                "examples/own_streams/own_streams.toml",
                "--training.steps=12",
                "--precision.mode=fp64",
                "--run.device=cpu",
                "--run.matmul=mkl",
                "--run.folder=" + (folder / name)};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished outcome = run_process({.command = words, .limit = std::chrono::seconds(240)});
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return report::read_metrics(folder / (name + "/metrics.jsonl"));
  }
  const TemporaryFolder folder;
  const std::string program = example_program("own_streams");
};

// The test compares the objective's loss, and the loss term that one of the blocks attaches.
TEST_F(OwnStreams, EqualsOneRankOnEightRanks) {
  const report::RecordedSteps one = train("one", {"--parallel.data=1"});
  const report::RecordedSteps eight =
      train("eight", {"--parallel.data=2", "--parallel.tensor=2", "--parallel.pipeline=2", "--parallel.zero=1"});
  for (const char* name : {"loss", "blocks.2.distance"}) {
    const std::vector<double> want = one.values(name, 0), got = eight.values(name, 0);
    ASSERT_EQ(want.size(), 12u) << name;
    ASSERT_EQ(got.size(), want.size()) << name;
    EXPECT_LT(want.back(), want.front()) << name;
    EXPECT_GT(want.back(), 0) << name;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << name << ", step " << i + 1;
  }
}

}  // namespace
}  // namespace colossal::test::own_streams_test
