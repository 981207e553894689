// `colossal train` when processes are killed: the process that is named, the remains, and the continuation.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <random>

#include "colossal/base/error.h"
#include "colossal/checkpoint/checkpoint.h"
#include "dist/train_program.h"
#include "support/paths.h"

namespace colossal::test::train_kills_test {
namespace {

TEST_F(TrainProgram, EndsAllRanksAndNamesAKilledStage) {
  write_config(100000, 5);
  std::vector<int> ranks;
  std::chrono::steady_clock::time_point killed;
  const Finished result = run_process({.command = train({"--parallel.data=2", "--parallel.pipeline=2"}),
                                       .limit = seconds(100),
                                       .meanwhile = [&](const std::string&, int launcher) {
                                         if (!ranks.empty() || !checkpoint::latest(base + "/run/checkpoints")) return;
                                         ranks = children_of(launcher);
                                         killed = std::chrono::steady_clock::now();
                                         kill(ranks.at(2), SIGKILL);  // the second stage of the first replica
                                       }});
  ASSERT_EQ(ranks.size(), 4u) << result.output;
  EXPECT_LT(std::chrono::steady_clock::now() - killed, seconds(10));
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.output.find(concat("rank 2 of 4 (process ", ranks[2], ") was killed by SIGKILL")), std::string::npos)
      << result.output;
  for (const int rank : ranks) EXPECT_NE(kill(rank, 0), 0) << "a rank still runs";
}

TEST_F(TrainProgram, EndsAllRanksAndNamesAKilledOne) {
  write_config(100000, 5);
  std::vector<int> ranks;
  std::chrono::steady_clock::time_point killed;
  const Finished result = run_process({.command = train({"--parallel.data=2"}),
                                       .limit = seconds(100),
                                       .meanwhile = [&](const std::string&, int launcher) {
                                         if (!ranks.empty() || !checkpoint::latest(base + "/run/checkpoints")) return;
                                         ranks = children_of(launcher);
                                         killed = std::chrono::steady_clock::now();
                                         kill(ranks.at(1), SIGKILL);
                                       }});
  ASSERT_EQ(ranks.size(), 2u) << result.output;
  EXPECT_LT(std::chrono::steady_clock::now() - killed, seconds(10));
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.output.find("was killed by SIGKILL"), std::string::npos) << result.output;
  for (const int rank : ranks) EXPECT_NE(kill(rank, 0), 0) << "a rank still runs";
  // The same command continues from the newest checkpoint.
  const auto steps = checkpoint::complete_steps(base + "/run/checkpoints");
  const Finished resumed = run(train({"--parallel.data=2", "--resume", concat("--training.steps=", steps.back() + 2)}));
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_EQ(losses().size(), static_cast<size_t>(steps.back() + 2));
}

TEST_F(TrainProgram, KeepsACompleteCheckpointAfterFiftyRandomKills) {
  write_config(1000000, 1);
  std::mt19937 random(7);
  const auto newest_step = [&]() -> int64_t {
    const auto newest = checkpoint::latest(base + "/run/checkpoints");
    return newest ? checkpoint::read_progress(*newest).at("step").get<int64_t>() : 0;
  };
  for (int i = 0; i < 50; ++i) {
    const int64_t before = newest_step();
    const Finished result =
        run_process({.command = train({"--resume", "--model.layers=1", "--training.evaluate_batches=0"}),
                     .limit = seconds(60),
                     .meanwhile = [&](const std::string&, int process) {
                       if (newest_step() == before) return;
                       usleep(random() % 40000);
                       kill(process, SIGKILL);
                     }});
    ASSERT_EQ(result.status, 128 + SIGKILL) << "start " << i << ": " << result.output;
    ASSERT_FALSE(result.late) << "start " << i << ": " << result.output;
    ASSERT_GT(newest_step(), before) << "kill " << i;
  }
}

TEST_F(TrainProgram, KeepsTheOverwrittenRunIfKilledBeforeTheFirstCheckpoint) {
  ASSERT_EQ(run(train({"--parallel.data=2"})).status, 0);
  const Finished killed = run_process(
      {.command = train({"--parallel.data=2", "--overwrite", "--training.steps=100000", "--training.save_every=0"}),
       .limit = seconds(100),
       .meanwhile = [&](const std::string& output, int process) {
         if (has_stepped(output)) kill(process, SIGKILL);
       }});
  ASSERT_EQ(killed.status, 128 + SIGKILL) << killed.output;
  const Finished exported = run({program_path(), "export", "--from", base + "/run", "--to", base + "/hf"});
  EXPECT_NE(exported.output.find("restore the earlier run with `colossal train --resume`"), std::string::npos)
      << exported.output;
  const Finished resumed = run(train({"--resume", "--training.steps=13"}));
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed from " + base + "/run/checkpoints/step-000012"), std::string::npos)
      << resumed.output;
  EXPECT_EQ(losses().size(), 13u);
  const Finished named = run(train({"--resume-from", "12", "--training.steps=13"}));
  EXPECT_EQ(named.status, 0) << named.output;
  EXPECT_NE(named.output.find("resumed from " + base + "/run/checkpoints/step-000012"), std::string::npos)
      << named.output;
}

TEST_F(TrainProgram, RefusesASecondRunInTheFolder) {
  write_config(100000, 0);
  Finished second;
  bool asked = false;
  const Finished first =
      run_process({.command = train(), .limit = seconds(100), .meanwhile = [&](const std::string& output, int process) {
                     if (asked || !has_stepped(output)) return;
                     asked = true;
                     second = run(train());
                     kill(process, SIGTERM);
                   }});
  EXPECT_EQ(second.status, 1);
  EXPECT_NE(second.output.find("[run] another run is writing to " + base + "/run"), std::string::npos) << second.output;
  EXPECT_NE(first.output.find("run the same command with --resume"), std::string::npos) << first.output;
}

// Each file of the reference's log-probabilities is complete, so the next start goes on behind them.
TEST_F(TrainProgram, KeepsThePrecomputedReferenceIfKilled) {
  std::ofstream pairs(base + "/pairs.jsonl");
  for (int i = 0; i < 4000; ++i)
    pairs << R"({"prompt": "Add )" << i << R"(: ", "chosen": "It is )" << i << R"(.", "rejected": "no"})" << "\n";
  pairs.close();
  write_config(1000, 4);
  const auto files = [&] {
    int64_t count = 0;
    std::error_code ignored;
    for (const char* folder : {"/run/reference", "/run/reference.next"})
      for (const auto& entry : std::filesystem::directory_iterator(base + folder, ignored))
        count += entry.path().extension() == ".scores";
    return count;
  };
  const Words flags{"--alignment.method=dpo", "--reference.precompute=true", "--data.path=" + base + "/pairs.jsonl",
                    "--data.sequence=32", "--training.batch_size=2"};
  const Finished killed =
      run_process({.command = train(flags), .limit = seconds(100), .meanwhile = [&](const std::string&, int process) {
                     if (files() > 0) kill(process, SIGKILL);
                   }});
  ASSERT_EQ(killed.status, 128 + SIGKILL) << killed.output;
  EXPECT_FALSE(checkpoint::latest(base + "/run/checkpoints")) << "no step was made";
  const int64_t before = files();
  Words few = flags;
  few.push_back("--training.steps=8");
  few.push_back("--training.evaluate_batches=0");
  const Finished trained = run(train(few));
  EXPECT_EQ(trained.status, 0) << trained.output;
  EXPECT_EQ(files(), before) << "the first 16 batches were stored";
  EXPECT_NEAR(losses().at(0), std::log(2.0), 1e-4);
}

}  // namespace
}  // namespace colossal::test::train_kills_test
