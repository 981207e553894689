// The library as others meet it: installed, found by CMake, linked into a program that trains a module of its own.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/process.h"

namespace colossal::test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

Finished run(const Words& command, int limit = 60) { return run_process({.command = command, .limit = std::chrono::seconds(limit)}); }

/// The last number behind "  loss " in `output`; 0: there is none.
double last_loss(const std::string& output) {
  const size_t at = output.rfind("  loss ");
  return at == std::string::npos ? 0 : std::stod(output.substr(at + 7));
}

TEST(Installed, AProgramWithItsOwnModuleIsBuiltTrainedAndResumed) {
  const std::string base = testing::TempDir() + "/installed", prefix = base + "/prefix", source = std::string(COLOSSAL_SOURCE_DIR) + "/examples/own_module";
  fs::remove_all(base);
  const Finished installed = run({COLOSSAL_CMAKE, "--install", fs::path(COLOSSAL_BINARY).parent_path(), "--prefix", prefix});
  ASSERT_EQ(installed.status, 0) << installed.output;
  const Finished version = run({prefix + "/bin/colossal", "--version"});
  EXPECT_EQ(version.output.rfind("colossal ", 0), 0u) << version.output;

  const Finished configured = run({COLOSSAL_CMAKE, "-G", COLOSSAL_GENERATOR, "-S", source, "-B", base + "/build", "-DCMAKE_PREFIX_PATH=" + prefix,
                                   std::string("-DCMAKE_CXX_COMPILER=") + COLOSSAL_COMPILER});
  ASSERT_EQ(configured.status, 0) << configured.output;
  const Finished built = run({COLOSSAL_CMAKE, "--build", base + "/build"}, 200);
  ASSERT_EQ(built.status, 0) << built.output;

  const auto own_module = [&](const Words& flags) {
    Words words{base + "/build/own_module", source + "/own_module.toml", "--run.folder=" + base + "/run"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run(words);
  };
  const Finished begun = own_module({"--training.steps=1"});
  ASSERT_EQ(begun.status, 0) << begun.output;
  const Finished shared = own_module({"--training.steps=120"});
  ASSERT_EQ(shared.status, 0) << shared.output;
  EXPECT_NE(shared.output.find("goes on after step 1\n"), std::string::npos) << shared.output;
  EXPECT_GT(last_loss(shared.output), 0) << shared.output;
  EXPECT_LT(last_loss(shared.output), last_loss(begun.output) / 2) << begun.output << shared.output;
  const Finished alone = own_module({"--training.steps=140", "--parallel.data=1", "--parallel.zero=0"});
  ASSERT_EQ(alone.status, 0) << alone.output;
  EXPECT_NE(alone.output.find("goes on after step 120\n"), std::string::npos) << alone.output;
  EXPECT_GT(last_loss(alone.output), 0) << alone.output;
  EXPECT_LT(last_loss(alone.output), last_loss(begun.output) / 2) << alone.output;
  fs::remove_all(base);  // archives with debug information
}

}  // namespace
}  // namespace colossal::test
