// Contents of an installation.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "support/process.h"

namespace colossal::test::prefix_test {
namespace {

namespace fs = std::filesystem;

Finished command(const std::vector<std::string>& words) {
  return run_process({.command = words, .limit = std::chrono::seconds(60)});
}

/// Installs this build in a folder that is removed after the test, because its archives have debug information.
class Installed : public testing::Test {
 protected:
  void SetUp() override {
    base = testing::TempDir() + "/installed-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(base);
    const Finished installed =
        command({COLOSSAL_CMAKE, "--install", fs::path(COLOSSAL_BINARY).parent_path(), "--prefix", prefix()});
    ASSERT_EQ(installed.status, 0) << installed.output;
  }
  void TearDown() override { fs::remove_all(base); }
  std::string prefix() const { return base + "/prefix"; }

  std::string base;
};

TEST_F(Installed, RunsItsPrograms) {
  const Finished version = command({prefix() + "/bin/colossal", "--version"});
  EXPECT_EQ(version.output.rfind("colossal ", 0), 0u) << version.output;
  const Finished info = command({prefix() + "/bin/colossal", "info", "--no-measure"});  // runs the program in libexec
  EXPECT_EQ(info.status, 0) << info.output;
}

TEST_F(Installed, HoldsOnlyPublicHeaders) {
  std::set<std::string> headers;
  for (const auto& entry : fs::recursive_directory_iterator(prefix() + "/include"))
    if (entry.is_regular_file()) headers.insert(fs::relative(entry.path(), prefix() + "/include").string());
  for (const char* header : {"colossal.h", "colossal/nn/layers.h", "colossal/parallel/tensor/config.h"})
    EXPECT_TRUE(headers.count(header)) << header;
  for (const char* header : {"colossal/memory/chunk_store.h", "colossal/report/plot.h", "colossal/ops/simd.h"})
    EXPECT_FALSE(headers.count(header)) << header;
}

}  // namespace
}  // namespace colossal::test::prefix_test
