// `colossal plan CONFIG --check` as a user runs it: local ranks train two steps and agree with the prediction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace colossal::test::plan_check_test {
namespace {

Finished check_example(const std::string& example, const std::vector<std::string>& flags) {
  const TemporaryFolder cache;
  Process process;
  process.command = {program_path(), "plan", source_dir() + "/examples/" + example, "--check"};
  process.command.insert(process.command.end(), flags.begin(), flags.end());
  // An empty cache has no profile, so the planner measures the machine, which takes hundreds of MiB.
  process.variables = {{"OMP_NUM_THREADS", "1"}, {"XDG_CACHE_HOME", cache.path()}};
  process.limit = std::chrono::seconds(240);
  return run_process(process);
}

Finished check_quickstart(const std::vector<std::string>& flags) { return check_example("quickstart.toml", flags); }

nlohmann::json answer_of(const Finished& finished) {
  const size_t begin = finished.output.find('{'), end = finished.output.rfind('}');
  if (finished.status != 0 || begin == std::string::npos) throw std::runtime_error(finished.output);
  return nlohmann::json::parse(finished.output.substr(begin, end + 1 - begin));
}

TEST(PlanCheck, AgreesWithTheQuickstart) {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const auto json = answer_of(check_quickstart({"--json", "--data.sequence=64", "--run.folder=" + run}));
  EXPECT_EQ(json.at("ranks"), 2);
  int reductions = 0;
  for (const nlohmann::json& row : json.at("checks")) {
    const std::string name = row.at("name");
    if (name.ends_with(" calls") || name.ends_with(" bytes")) EXPECT_EQ(row.at("predicted"), row.at("counted")) << row;
    reductions += name == "data all_reduce backward bytes";
  }
  EXPECT_EQ(reductions, 2) << "one for each rank";
  EXPECT_FALSE(std::filesystem::exists(run));
}

// A UNet of drawn shapes on two ranks that share its features.
TEST(PlanCheck, EncodesWhatARunReads) {
  const TemporaryFolder folder;
  folder.write("run.check/notes.txt", "a folder of the user");
  const auto json =
      answer_of(check_example("sd_finetune.toml", {"--json", "--run.folder=" + (folder / "run"), "--parallel.tensor=2",
                                                   "--data.path=builtin-shapes:20", "--training.batch_size=2"}));
  int calls = 0;
  for (const nlohmann::json& row : json.at("checks")) {
    const std::string name = row.at("name");
    if (!name.ends_with(" calls") && !name.ends_with(" bytes")) continue;
    EXPECT_EQ(row.at("predicted"), row.at("counted")) << row;
    ++calls;
  }
  EXPECT_GT(calls, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "run.check/notes.txt"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1)
      << "what was made for the check is removed";
}

/// A rank of this size has 200 MiB; the process that measured the machine has three times as many.
TEST(PlanCheck, CountsTheMemoryOfASingleRankInItsOwnProcess) {
  const auto json = answer_of(check_quickstart({"--json", "--data.sequence=64", "--parallel.data=1"}));
  EXPECT_EQ(json.at("ranks"), 1);
  int rows = 0;
  for (const nlohmann::json& row : json.at("checks")) {
    if (row.at("name") != "resident_bytes") continue;
    ++rows;
    EXPECT_LT(row.at("counted"), 1.5 * row.at("predicted").get<double>()) << row;
  }
  EXPECT_EQ(rows, 1);
}

TEST(PlanCheck, RefusesMoreRanksThanItStarts) {
  const Finished finished = check_quickstart({"--ranks=128", "--training.batch_size=128"});
  EXPECT_EQ(finished.status, 1);
  EXPECT_THAT(finished.output, testing::HasSubstr("--check trains on at most 64 ranks: got 128"));
}

}  // namespace
}  // namespace colossal::test::plan_check_test
