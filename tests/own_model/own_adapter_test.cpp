// The program examples/own_adapter: adapters train equally under every layout, and a checkpoint contains only adapters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "colossal/report/metrics.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace colossal::test::own_adapter_test {
namespace {

using Words = std::vector<std::string>;
using testing::HasSubstr;

class OwnAdapter : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(folder / "text.txt");
    for (int i = 0; i < 400; ++i) text << "line " << i * 37 % 101 << " of a text that can be learnt\n";
  }
  Finished train(const std::string& name, const Words& flags) const { return run("train", name, flags); }
  Finished run(const std::string& command, const std::string& name, const Words& flags) const {
    Words words{example_program("own_adapter"),
                command,
                source_dir() + "/examples/own_adapter/own_adapter.toml",
                "--run.folder=" + (folder / name),
                "--run.device=cpu",
                "--run.matmul=mkl",
                "--data.path=" + (folder / "text.txt"),
                "--data.sequence=24",
                "--parallel.data=1",
                "--training.steps=6",
                "--training.evaluate_batches=0",
                "--training.sample_tokens=0",
                "--precision.mode=fp64"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_process({.command = words, .limit = std::chrono::seconds(120)});
  }
  std::vector<double> losses(const std::string& name, const Words& flags) const {
    const Finished outcome = train(name, flags);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return report::read_metrics(folder / (name + "/metrics.jsonl")).values("loss", 0);
  }
  static void expect_near(const std::vector<double>& got, const std::vector<double>& want, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << what << ", step " << i + 1;
  }
  const TemporaryFolder folder;
};

TEST_F(OwnAdapter, EqualsOneRankOnEightRanks) {
  const Words eight{"--parallel.tensor=2", "--parallel.pipeline=2", "--parallel.data=2", "--parallel.zero=1"};
  const std::vector<double> want = losses("one", {});
  ASSERT_EQ(want.size(), 6u);
  EXPECT_GT(std::abs(want.back() - want.front()), 1e-6);
  expect_near(losses("eight", eight), want, "eight ranks");
  const std::vector<double> narrow = losses("narrow", {"--low_rank.rank=1"});
  EXPECT_GT(std::abs(narrow.back() - want.back()), 1e-9) << "the key of the table counts";
  EXPECT_THAT(train("odd", {"--low_rank.rnk=2"}).output, HasSubstr("did you mean `low_rank.rank`"));
}

TEST_F(OwnAdapter, TrainsAsPlanned) {
  const Finished check = run("plan", "none", {"--check", "--parallel.data=2", "--parallel.tensor=2"});
  EXPECT_EQ(check.status, 0) << check.output;
  EXPECT_THAT(check.output, HasSubstr("numbers of calls and of bytes sent are equal, which is all of them"));
  EXPECT_THAT(check.output, HasSubstr("without its adapter"));
}

TEST_F(OwnAdapter, SavesOnlyAdaptersAndResumesUnderAnotherLayout) {
  const std::vector<double> want = losses("whole", {"--training.save_every=3"});
  const Finished first = train("parts", {"--training.steps=3"});
  ASSERT_EQ(first.status, 0) << first.output;
  EXPECT_THAT(first.output, HasSubstr("train and")) << "the run says how many parameters are frozen";
  const std::string text = read_all(folder / "parts/checkpoints/step-000003/manifest.json");
  EXPECT_THAT(text, HasSubstr("model.blocks.0.attention.qkv.adapter_a"));
  EXPECT_THAT(text, HasSubstr("model.blocks.3.mlp.down.adapter_b"));
  EXPECT_THAT(text, testing::Not(HasSubstr("qkv.weight")));
  EXPECT_THAT(text, testing::Not(HasSubstr("embedding")));
  // The run makes all 6 steps and is then resumed from step 3, because the learning rate depends on the number of
  // steps.
  const Finished stopped = train("changed", {"--training.steps=6", "--training.save_every=3"});
  ASSERT_EQ(stopped.status, 0) << stopped.output;
  const std::vector<double> resumed =
      losses("changed", {"--resume-from=3", "--parallel.tensor=2", "--parallel.zero=1", "--parallel.data=2"});
  ASSERT_EQ(resumed.size(), want.size());
  expect_near(resumed, want, "resumed on four ranks");
  const Finished other = train("changed", {"--resume", "--training.seed=5"});
  EXPECT_NE(other.status, 0);
  EXPECT_THAT(other.output, HasSubstr("training.seed = 0: this run has 5"));
  const Finished generated =
      run_process({.command = {example_program("own_adapter"), "generate", "--from", folder / "whole", "--prompt",
                               "line", "--max-tokens=4", "--run.device=cpu"},
                   .limit = std::chrono::seconds(120)});
  EXPECT_EQ(generated.status, 0) << generated.output;
}

}  // namespace
}  // namespace colossal::test::own_adapter_test
