// The program of examples/own_streams, whose blocks read and change two hidden states, which the tutorial
// docs/tutorials/own-model.md has built against an installation (the test docs.own-model).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "colossal/report/metrics.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace colossal::test::own_streams_test {
namespace {

using Words = std::vector<std::string>;

class OwnStreams : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::filesystem::exists(program)) << program << " must be built: run the test docs.own-model first";
  }
  /// The losses of 12 steps in fp64, from the root of the repository.
  std::vector<double> losses(const std::string& name, const Words& flags) const {
    Words words{"env",
                "-C",
                COLOSSAL_SOURCE_DIR,
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
    return report::read_metrics(folder / (name + "/metrics.jsonl")).values("loss", 0);
  }
  const TemporaryFolder folder;
  const std::string program = COLOSSAL_OWN_STREAMS;
};

TEST_F(OwnStreams, TrainsOnEightRanksAsOnOne) {
  const std::vector<double> want = losses("one", {"--parallel.data=1"});
  ASSERT_EQ(want.size(), 12u);
  EXPECT_LT(want.back(), want.front());
  const std::vector<double> got =
      losses("eight", {"--parallel.data=2", "--parallel.tensor=2", "--parallel.pipeline=2", "--parallel.zero=1"});
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << "step " << i + 1;
}

}  // namespace
}  // namespace colossal::test::own_streams_test
