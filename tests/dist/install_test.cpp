// The library as others meet it: installed, found by CMake, linked into a program that trains a module of its own.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/process.h"

namespace colossal::test::install_test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

Finished run(const Words& command, int limit = 60) {
  return run_process({.command = command, .limit = std::chrono::seconds(limit)});
}

/// The numbers behind "  loss " in `output`.
std::vector<double> losses_in(const std::string& output) {
  const std::string mark = "  loss ";
  std::vector<double> losses;
  for (size_t at = output.find(mark); at != std::string::npos; at = output.find(mark, at + 1))
    losses.push_back(std::stod(output.substr(at + mark.size())));
  return losses;
}

TEST(Installed, AProgramWithItsOwnModuleIsBuiltTrainedAndResumed) {
  const std::string base = testing::TempDir() + "/installed", prefix = base + "/prefix",
                    source = std::string(COLOSSAL_SOURCE_DIR) + "/examples/own_module";
  fs::remove_all(base);
  const Finished installed =
      run({COLOSSAL_CMAKE, "--install", fs::path(COLOSSAL_BINARY).parent_path(), "--prefix", prefix});
  ASSERT_EQ(installed.status, 0) << installed.output;
  const Finished version = run({prefix + "/bin/colossal", "--version"});
  EXPECT_EQ(version.output.rfind("colossal ", 0), 0u) << version.output;
  const Finished info = run({prefix + "/bin/colossal", "info", "--no-measure"});  // of the program in libexec
  EXPECT_EQ(info.status, 0) << info.output;

  const Finished configured =
      run({COLOSSAL_CMAKE, "-G", COLOSSAL_GENERATOR, "-S", source, "-B", base + "/build",
           "-DCMAKE_PREFIX_PATH=" + prefix, std::string("-DCMAKE_CXX_COMPILER=") + COLOSSAL_COMPILER});
  ASSERT_EQ(configured.status, 0) << configured.output;
  const Finished built = run({COLOSSAL_CMAKE, "--build", base + "/build"}, 200);
  ASSERT_EQ(built.status, 0) << built.output;

  const auto own_module = [&](const Words& flags) {
    Words words{base + "/build/own_module", source + "/own_module.toml", "--run.folder=" + base + "/run"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run(words);
  };
  const Finished begun = own_module({"--training.steps=20"});
  ASSERT_EQ(begun.status, 0) << begun.output;
  ASSERT_EQ(losses_in(begun.output).size(), 2u) << begun.output;  // of steps 1 and 20
  const double first = losses_in(begun.output).front();
  const auto expect_learnt_after = [&](const std::string& step, const Finished& run) {
    ASSERT_EQ(run.status, 0) << run.output;
    EXPECT_NE(run.output.find("goes on after step " + step + "\n"), std::string::npos) << run.output;
    ASSERT_FALSE(losses_in(run.output).empty()) << run.output;
    EXPECT_LT(losses_in(run.output).back(), first / 2) << run.output;
  };
  expect_learnt_after("20", own_module({"--training.steps=140"}));
  expect_learnt_after("140", own_module({"--training.steps=160", "--parallel.data=1", "--parallel.zero=0"}));
  fs::remove_all(base);  // archives with debug information
}

}  // namespace
}  // namespace colossal::test::install_test
