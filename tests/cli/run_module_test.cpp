// run_module() for a user's own program: its arguments, its rank, its errors.
#include "colossal/cli/run_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "colossal/base/error.h"

namespace colossal::test::run_module_test {
namespace {

using testing::HasSubstr;

struct Ended {
  int status;
  std::string out, error;
  int calls = 0;
};

class RunModule : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(testing::TempDir());
    std::ofstream(path) << "[run]\ndevice = \"cpu\"\n[training]\nsteps = 70\nbatch_size = 4\n";
  }
  Ended run(std::vector<std::string> words, const cli::ModuleWork& work = {}) const {
    words.insert(words.begin(), "/some/where/own_program");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    Ended ended{};
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    ended.status =
        run_module(static_cast<int>(argv.size()), argv.data(), [&](comm::World& world, const run::Config& config) {
          ++ended.calls;
          if (work) work(world, config);
        });
    ended.out = testing::internal::GetCapturedStdout();
    ended.error = testing::internal::GetCapturedStderr();
    return ended;
  }
  const std::string path = testing::TempDir() + "/run_module.toml";
};

TEST_F(RunModule, CallsWorkWithTheConfig) {
  const Ended ended = run({path, "--training.steps=90"}, [](comm::World& world, const run::Config& config) {
    EXPECT_EQ(world.size(), 1);
    EXPECT_EQ(config.training.steps, 90);
    EXPECT_EQ(config.training.batch_size, 4);
  });
  EXPECT_EQ(ended.status, 0) << ended.error;
  EXPECT_EQ(ended.calls, 1);
}

TEST_F(RunModule, LeavesPlanAndAutoToAutoParallel) {
  const Ended planned = run({path, "--parallel.plan=plan.json"}, [](comm::World&, const run::Config& config) {
    EXPECT_EQ(config.parallel.plan, "plan.json");
  });
  EXPECT_EQ(planned.calls, 1) << planned.error;
  const Ended chosen = run({path, "--parallel.auto=true", "--parallel.ranks=1"});
  EXPECT_EQ(chosen.calls, 1) << chosen.error;
  const Ended open = run({path, "--parallel.auto=true"});
  EXPECT_THAT(open.error, HasSubstr("auto needs the number of ranks"));
}

TEST_F(RunModule, RefusesUnknownTables) {
  const Ended ended = run({path, "--trainin.steps=90"});
  EXPECT_NE(ended.status, 0);
  EXPECT_EQ(ended.calls, 0);
  EXPECT_THAT(ended.error, HasSubstr("unknown key `trainin.steps`, did you mean `training.steps`?"));
}

TEST_F(RunModule, PrintsItsUsage) {
  const Ended helped = run({"--help"}), misused = run({}), flag_first = run({"--training.steps=90", path});
  EXPECT_EQ(helped.status, 0);
  EXPECT_THAT(helped.out, HasSubstr("usage: own_program FILE.toml"));
  for (const Ended& ended : {misused, flag_first}) {
    EXPECT_EQ(ended.status, 2);
    EXPECT_THAT(ended.error, HasSubstr("usage: own_program FILE.toml"));
    EXPECT_EQ(ended.calls, 0);
  }
}

TEST_F(RunModule, EndsWithTheMessageOfAnError) {
  const Ended absent = run({path + ".absent"});
  EXPECT_EQ(absent.status, 1);
  EXPECT_THAT(absent.error, HasSubstr("own_program: ["));
  const Ended unknown = run({path, "--training.stepps=90"});
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.error, HasSubstr("did you mean `training.steps`"));
  EXPECT_EQ(absent.calls + unknown.calls, 0);
  const Ended thrown = run({path}, [](comm::World&, const run::Config&) { throw Error("data", "no points"); });
  EXPECT_EQ(thrown.status, 1);
  EXPECT_EQ(thrown.error, "own_program: [data] no points\n");
}

}  // namespace
}  // namespace colossal::test::run_module_test
