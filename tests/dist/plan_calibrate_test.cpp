// `colossal plan --calibrate` as a user runs it: local ranks measure, and one file comes out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "colossal/base/machine.h"
#include "colossal/cli/plan.h"
#include "colossal/plan/cluster.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace colossal::test::plan_calibrate_test {
namespace {

using testing::HasSubstr;

Finished calibrate(const std::vector<std::string>& options, const std::map<std::string, std::string>& variables) {
  Process process;
  process.command = {program_path(), "plan", "--calibrate", "--device", "cpu", "--seconds", "0.5"};
  process.command.insert(process.command.end(), options.begin(), options.end());
  process.variables = variables;
  process.limit = std::chrono::seconds(240);
  return run_process(process);
}

int files_in(const std::filesystem::path& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) count += entry.is_regular_file();
  return count;
}

TEST(PlanCalibrate, StoresAProfileOfThisMachine) {
  const TemporaryFolder folder;
  const auto finished = calibrate({}, {{"XDG_CACHE_HOME", folder.path()}});
  ASSERT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("memory bandwidth"));
  std::string why;
  const auto profile = plan::stored_profile(folder / "colossal/profile.toml", describe_machine(), why);
  ASSERT_TRUE(profile) << why;
  EXPECT_EQ(files_in(folder / "colossal"), 1);  // the parts are removed
  const auto counts = cli::calibrated_ranks(describe_machine().cores);
  EXPECT_EQ(profile->products.threads.size(), counts.size());
  EXPECT_EQ(profile->collectives.ranks.size(), counts.size() - 1);
  EXPECT_GT(plan::Cluster(*profile).product_seconds(64, 64, 64, plan::NumberType::Fp32), 0);
}

TEST(PlanCalibrate, WritesToAFile) {
  const TemporaryFolder folder;
  const auto finished = calibrate({"--to", folder / "new/mine.toml"}, {});
  ASSERT_EQ(finished.status, 0) << finished.output;
  EXPECT_EQ(plan::find_profile(folder / "new/mine.toml").machine.cores, describe_machine().cores);
}

}  // namespace
}  // namespace colossal::test::plan_calibrate_test
