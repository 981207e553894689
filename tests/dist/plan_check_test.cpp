// `colossal plan CONFIG --check` as a user runs it: local ranks train two steps and agree with the prediction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace colossal::test::plan_check_test {
namespace {

Finished check_quickstart(const std::vector<std::string>& flags) {
  Process process;
  process.command = {program_path(), "plan", source_dir() + "/examples/quickstart.toml", "--check"};
  process.command.insert(process.command.end(), flags.begin(), flags.end());
  process.variables = {{"OMP_NUM_THREADS", "1"}};
  process.limit = std::chrono::seconds(240);
  return run_process(process);
}

TEST(PlanCheck, AgreesWithTheQuickstart) {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const Finished finished = check_quickstart({"--json", "--data.sequence=64", "--run.folder=" + run});
  ASSERT_EQ(finished.status, 0) << finished.output;
  const size_t begin = finished.output.find('{');
  ASSERT_NE(begin, std::string::npos) << finished.output;
  const size_t end = finished.output.rfind('}');
  const auto json = nlohmann::json::parse(finished.output.substr(begin, end + 1 - begin));
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

TEST(PlanCheck, RefusesMoreRanksThanItStarts) {
  const Finished finished = check_quickstart({"--ranks=128", "--training.batch_size=128"});
  EXPECT_EQ(finished.status, 1);
  EXPECT_THAT(finished.output, testing::HasSubstr("--check trains on at most 64 ranks: got 128"));
}

}  // namespace
}  // namespace colossal::test::plan_check_test
