// The library as others meet it: installed, found by CMake, linked into a program of theirs.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/process.h"

namespace colossal::test {

using Words = std::vector<std::string>;

/// An installation of this build, in a folder that is gone after the test: its archives have debug information.
class Installed : public testing::Test {
 protected:
  void SetUp() override {
    base = testing::TempDir() + "/installed-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(base);
    const Finished installed = command(
        {COLOSSAL_CMAKE, "--install", std::filesystem::path(COLOSSAL_BINARY).parent_path(), "--prefix", prefix()});
    ASSERT_EQ(installed.status, 0) << installed.output;
  }
  void TearDown() override { std::filesystem::remove_all(base); }

  std::string prefix() const { return base + "/prefix"; }
  static std::string source(const std::string& example) {
    return std::string(COLOSSAL_SOURCE_DIR) + "/examples/" + example;
  }
  static Finished command(const Words& words, int limit = 60) {
    return run_process({.command = words, .limit = std::chrono::seconds(limit)});
  }
  static Finished run(const std::string& program, const Words& words, const Words& flags) {
    Words all{program};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), flags.begin(), flags.end());
    return command(all, 120);
  }

  /// The program of examples/<example>, configured and built as its README says. "" and a failure: it cannot be.
  std::string built(const std::string& example) const {
    const std::string folder = base + "/build";
    const Finished configured =
        command({COLOSSAL_CMAKE, "-G", COLOSSAL_GENERATOR, "-S", source(example), "-B", folder,
                 "-DCMAKE_PREFIX_PATH=" + prefix(), std::string("-DCMAKE_CXX_COMPILER=") + COLOSSAL_COMPILER});
    EXPECT_EQ(configured.status, 0) << configured.output;
    if (configured.status != 0) return "";
    const Finished made = command({COLOSSAL_CMAKE, "--build", folder}, 400);
    EXPECT_EQ(made.status, 0) << made.output;
    return made.status == 0 ? folder + "/" + example : "";
  }

  std::string base;
};

}  // namespace colossal::test
