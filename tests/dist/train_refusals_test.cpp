// Errors and warnings of `colossal train`, reported once for all ranks and before any work.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "dist/probe_process.h"
#include "dist/train_program.h"

namespace colossal::test::train_refusals_test {
namespace {

// No file may grow, including memory without a name, which simulates a host without free memory.
TEST_F(TrainProgram, NamesTheOtherTransportWithoutSharedMemory) {
  Words words{"sh", "-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"};
  const Words command = train({"--parallel.data=2"});
  words.insert(words.end(), command.begin(), command.end());
  const Finished refused = run(words);
  EXPECT_NE(refused.status, 0);
  EXPECT_NE(refused.output.find("bytes of shared memory"), std::string::npos) << refused.output;
  EXPECT_NE(refused.output.find("backend = \"gloo\""), std::string::npos) << refused.output;
  EXPECT_FALSE(std::filesystem::exists(base + "/run/checkpoints"));
  const Finished done = run(train({"--parallel.data=2", "--run.backend=gloo"}));  // the remedy works
  EXPECT_EQ(done.status, 0) << done.output;
}

/// Starts ranks one by one, as by hand, each with its own flags.
std::vector<Finished> started_apart(const std::vector<Words>& commands) {
  const std::string port = std::to_string(free_port()), size = std::to_string(commands.size());
  std::vector<Process> processes;
  for (size_t r = 0; r < commands.size(); ++r) {
    const std::string rank = std::to_string(r);
    processes.push_back({.command = commands[r],
                         .variables = clean({{"RANK", rank},
                                             {"LOCAL_RANK", rank},
                                             {"WORLD_SIZE", size},
                                             {"LOCAL_WORLD_SIZE", size},
                                             {"MASTER_ADDR", "127.0.0.1"},
                                             {"MASTER_PORT", port}}),
                         .limit = seconds(120)});
  }
  return run_processes(processes);
}

TEST_F(TrainProgram, RefusesRanksWithDifferentConfigs) {
  const Words first = train({"--parallel.data=2", "--optimizer.learning_rate=0.001"});
  const auto refused = started_apart({first, train({"--parallel.data=2", "--optimizer.learning_rate=0.0001"})});
  for (const Finished& rank : refused) EXPECT_EQ(rank.status, 1) << rank.output;
  EXPECT_NE(refused[0].output.find("colossal: [run] learning_rate of [optimizer] is 0.001 on rank 0 and 0.0001 on rank "
                                   "1; start all ranks with the same config"),
            std::string::npos)
      << refused[0].output;
  EXPECT_EQ(refused[1].output.find("learning_rate"), std::string::npos) << refused[1].output;  // it is said once
  EXPECT_FALSE(std::filesystem::exists(base + "/run/checkpoints"));
  // Different layouts make different groups, and different flags make different collectives, so the check comes first.
  const auto layouts = started_apart({first, train({"--parallel.tensor=2", "--optimizer.learning_rate=0.001"})});
  EXPECT_NE(layouts[0].output.find("data of [parallel] is 2 on rank 0 and 1 on rank 1"), std::string::npos)
      << layouts[0].output;
  for (const Finished& rank : started_apart({first, first})) EXPECT_EQ(rank.status, 0) << rank.output;
}

TEST_F(TrainProgram, RefusesRanksThatDoNotShareTheRunFolder) {
  std::vector<Words> commands;
  for (const char* name : {"one", "two"}) {
    const std::string folder = base + "/" + name;
    std::filesystem::create_directories(folder);
    Words words{"sh", "-c", "cd " + folder + " && exec \"$@\"", "sh"};
    for (const std::string& word : train({"--parallel.data=2", "--run.folder=run"})) words.push_back(word);
    commands.push_back(words);
  }
  const auto refused = started_apart(commands);
  for (const Finished& rank : refused) EXPECT_EQ(rank.status, 1) << rank.output;
  EXPECT_NE(refused[0].output.find("the folder run must be the same on all ranks"), std::string::npos)
      << refused[0].output;
  EXPECT_EQ(refused[0].output.find("  loss "), std::string::npos) << refused[0].output;
}

TEST_F(TrainProgram, RefusesTooManyRanksForAHost) {
  const Finished result = run(train({"--parallel.data=100000", "--training.batch_size=100000"}));
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.output.find("[launch] one host runs at most"), std::string::npos) << result.output;
}

TEST_F(TrainProgram, RefusesBadInputBeforeAnyRankStarts) {
  auto refusal = [&](const Words& flags) {
    const Finished outcome = run(train(flags));
    EXPECT_NE(outcome.status, 0);
    EXPECT_EQ(outcome.output.find("terminate"), std::string::npos) << outcome.output;
    return outcome.output;
  };
  EXPECT_NE(refusal({"--paralel.tensor=2"}).find("did you mean `parallel.tensor`"), std::string::npos);
  EXPECT_NE(refusal({"--training.steps=many"}).find("training.steps"), std::string::npos);
  EXPECT_NE(refusal({"--training.steps=0"}).find("training.steps"), std::string::npos);
  EXPECT_NE(refusal({"--parallel.data=3"}).find("the nearest are 6 and 9"), std::string::npos);
  EXPECT_NE(refusal({"--parallel.pipeline={size=2,schedule=\"interleaved\",micro_batches=1}"})
                .find("interleaved needs micro_batches divisible by the 2 ranks"),
            std::string::npos);
  EXPECT_NE(refusal({"--run.device=cuda"}).find("cuda needs a CUDA build"), std::string::npos);
}

TEST_F(TrainProgram, ShortensAWarmUpLongerThanTheRun) {
  const Finished outcome = run(train({"--parallel.data=2", "--training.steps=1"}));
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const std::string notice =
      "optimizer.warmup_steps = 2 is more than the 1 steps of this run: the warm-up is shortened to 0";
  const size_t first = outcome.output.find(notice);
  ASSERT_NE(first, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find(notice, first + 1), std::string::npos) << outcome.output;
}

TEST_F(TrainProgram, ReportsThatOneReplicaHasNothingToShard) {
  const Finished outcome = run(train({"--parallel.zero=2", "--training.steps=2", "--optimizer.warmup_steps=0"}));
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("parallel.zero = 2 has no effect on one replica"), std::string::npos) << outcome.output;
}

TEST_F(TrainProgram, ReportsAnErrorOfTheRanksOnce) {
  const Finished outcome = run(train({"--parallel.data=2", "--data.path=" + base + "/absent.txt"}));
  EXPECT_EQ(outcome.status, 1);
  const size_t first = outcome.output.find("absent.txt");
  ASSERT_NE(first, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("absent.txt", first + 10), std::string::npos) << outcome.output;
}

TEST_F(TrainProgram, ReportsARefusalOfAllRanksOnce) {
  std::filesystem::create_directories(base + "/held/checkpoints/step-000007");
  std::ofstream(base + "/held/checkpoints/step-000007/manifest.json") << "damaged";
  std::ofstream(base + "/short.txt") << "short";
  const std::vector<std::pair<Words, std::string>> refused{
      {{"--data.path=" + base + "/absent.txt"}, "absent.txt"},
      {{"--data.path=" + base + "/short.txt"}, "shorter than one sequence"},
      {{"--data.tokenizer=" + base + "/absent.json"}, "absent.json"},
      {{"--model.from=" + base + "/absent", "--model.hidden=0", "--model.layers=0", "--model.positions=0"},
       "/absent; name a run folder"},
      {{"--model.name=gpt3-tiny"}, "unknown preset"},
      {{"--model.layers=1000000000"}, "does not fit"},
      {{"--model.hidden=4611686018427387904"}, "model.hidden"},
      {{"--model.heads=5"}, "hidden must be divisible by heads"},
      {{"--data.sequence=65"}, "got 65 of 64"},
      {{"--parallel.data=1", "--parallel.tensor={size=4,mode=\"2d\"}", "--model.hidden=33", "--model.heads=3"}, "33"},
      {{"--optimizer.groups.parameters=[\"absent\"]"}, "no parameter belongs to group absent"},
      {{"--run.folder=" + base + "/held"}, "already holds"},
      {{"--run.folder=" + base + "/text.txt/run"}, "cannot create the folder"},
  };
  for (const auto& [flags, message] : refused) {
    Words words{"--parallel.data=4"};
    words.insert(words.end(), flags.begin(), flags.end());
    const std::string& flag = flags.back();
    const Finished outcome = run(train(words));
    EXPECT_EQ(outcome.status, 1) << flag << ": " << outcome.output;
    EXPECT_NE(outcome.output.find(message), std::string::npos) << flag << ": " << outcome.output;
    size_t said = 0;
    for (size_t at = outcome.output.find("colossal: ["); at != std::string::npos;
         at = outcome.output.find("colossal: [", at + 1))
      ++said;
    EXPECT_EQ(said, 1u) << flag << ": " << outcome.output;
  }
}

}  // namespace
}  // namespace colossal::test::train_refusals_test
