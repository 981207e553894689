// `colossal train` on real ranks: every layout, transport and launcher gives the same loss curve.
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "dist/train_program.h"
#include "support/paths.h"

namespace colossal::test::train_layouts_test {
namespace {

TEST_F(TrainProgram, GivesTheSameCurveInEveryLayoutAndTransport) {
  const Finished serial = run(train());
  ASSERT_EQ(serial.status, 0) << serial.output;
  const auto want = losses();
  EXPECT_EQ(want.size(), 12u);
  EXPECT_LT(want.back(), want.front());
  const std::vector<Words> layouts{
      {"--parallel.data=2"},
      {"--parallel.tensor=2", "--run.backend=gloo"},
      {"--parallel.data=2", "--parallel.tensor=2", "--run.backend=shm"},
      {"--parallel.data=4", "--run.backend=gloo"},
      {"--parallel.tensor=4", "--parallel.tensor.mode=2d", "--run.backend=shm"},
      {"--parallel.tensor=4", "--parallel.tensor.mode=2d", "--run.backend=gloo"},
      {"--parallel.tensor={size=8,mode=\"2.5d\",depth=2}", "--run.backend=shm"},
      {"--parallel.tensor={size=4,mode=\"2.5d\",depth=4}", "--run.backend=gloo"},
      {"--parallel.tensor={size=8,mode=\"3d\"}", "--run.backend=shm"},
      {"--parallel.tensor={size=8,mode=\"3d\"}", "--run.backend=gloo"},
      {"--parallel.data=2", "--run.backend=shm", "--parallel.zero=3"},
      {"--parallel.data=4", "--run.backend=gloo", "--parallel.zero=2"},
      {"--parallel.data=2", "--run.backend=gloo", "--parallel.zero=3", "--parallel.tensor=2"},
      {"--parallel.sequence={size=4,mode=\"usp\",ulysses=2}", "--run.backend=shm", "--parallel.zero=3"},
      {"--parallel.sequence={size=4,mode=\"usp\",ulysses=2}", "--run.backend=gloo"}};
  for (Words flags : layouts) {
    flags.push_back("--overwrite");
    const Finished outcome = run(train(flags));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    SCOPED_TRACE(flags[0] + flags[1]);
    expect_same_curve(losses(), want);
  }
}

TEST_F(TrainProgram, GivesTheSameCurveWithStagesInSeparateProcesses) {
  const Finished serial = run(train());
  ASSERT_EQ(serial.status, 0) << serial.output;
  const auto want = losses();
  EXPECT_LT(want.back(), want.front());
  for (const char* backend : {"shm", "gloo"}) {
    const Finished outcome =
        run(train({"--parallel.data=2", "--parallel.pipeline=2", concat("--run.backend=", backend), "--overwrite"}));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    SCOPED_TRACE(backend);
    expect_same_curve(losses(), want);
  }
}

TEST_F(TrainProgram, RunsUnderSlurmAndOpenMpiVariables) {
  const std::vector<std::pair<std::string, Words>> launchers{{"SLURM_", {"PROCID", "STEP_NUM_TASKS", "LOCALID"}},
                                                             {"OMPI_COMM_WORLD_", {"RANK", "SIZE", "LOCAL_RANK"}}};
  for (const auto& [prefix, names] : launchers) {
    const std::string port = std::to_string(free_port());
    std::filesystem::remove_all(base + "/run");
    std::vector<Process> ranks;
    for (int r = 0; r < 2; ++r) {
      const std::string rank = std::to_string(r);
      ranks.push_back({.command = train({"--parallel.data=2"}),
                       .variables = {{prefix + names[0], rank},
                                     {prefix + names[1], "2"},
                                     {prefix + names[2], rank},
                                     {"MASTER_ADDR", "127.0.0.1"},
                                     {"MASTER_PORT", port}}});
    }
    for (const Finished& rank : run_processes(ranks)) EXPECT_EQ(rank.status, 0) << prefix << rank.output;
    EXPECT_EQ(losses().size(), 12u);
  }
}

TEST_F(TrainProgram, RunsUnderTorchrun) {
  const std::string torchrun = source_dir() + "/.venv/bin/torchrun";
  if (!std::filesystem::exists(torchrun)) GTEST_SKIP() << torchrun << " is absent";
  Words words{torchrun, "--standalone", "--nproc-per-node=2", "--no-python"};
  for (const auto& word : train({"--parallel.tensor=2"})) words.push_back(word);
  const Finished outcome = run(words);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(losses().size(), 12u);
}

TEST_F(TrainProgram, RunsUnderMpirun) {
  if (find_program("mpirun").empty()) GTEST_SKIP() << "mpirun is not installed";
  Words words{"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"};
  for (const auto& word : train({"--parallel.data=2"})) words.push_back(word);
  const Finished outcome = run(words);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(losses().size(), 12u);
}

}  // namespace
}  // namespace colossal::test::train_layouts_test
