// The program with a small text and a small model, in a separate folder per test.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/report/metrics.h"
#include "support/paths.h"
#include "support/process.h"

namespace colossal::test {

using std::chrono::seconds;
using Words = std::vector<std::string>;

inline Finished run(const Words& command) { return run_process({.command = command, .limit = seconds(120)}); }

class TrainProgram : public testing::Test {
 protected:
  void SetUp() override {
    base = testing::TempDir() + "/program-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(base);
    std::filesystem::create_directories(base);
    std::ofstream text(base + "/text.txt");
    for (int i = 0; i < 400; ++i) text << "line " << i * 37 % 101 << " of a text that can be learnt\n";
    write_config(12, 4);
  }
  void write_config(int steps, int save_every) const {
    std::ofstream config(base + "/config.toml");
    config << "[run]\nfolder = \"" << base << "/run\"\ndevice = \"cpu\"\nmatmul = \"mkl\"\n"
           << "[model]\nname = \"gpt2-tiny\"\nhidden = 32\nlayers = 2\npositions = 64\n"
           << "[data]\npath = \"" << base << "/text.txt\"\nsequence = 24\n"
           << "[optimizer]\nwarmup_steps = 2\n"
           << "[training]\nsteps = " << steps << "\nbatch_size = 8\nsave_every = " << save_every
           << "\nevaluate_batches = 1\nsample_tokens = 8\n";
  }
  Words train(const Words& flags = {}) const {
    Words words{program_path(), "train", base + "/config.toml"};
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }
  std::vector<double> losses() const { return report::read_metrics(base + "/run/metrics.jsonl").values("loss", 0); }
  void expect_same_curve(const std::vector<double>& got, const std::vector<double>& want) const {
    ASSERT_EQ(got.size(), want.size());
    // fp32, 12 steps
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4 * want[i]) << "step " << i + 1;
  }
  /// Checks that the last step of the metrics is in a checkpoint, and that the report exists.
  void expect_all_is_saved() const {
    const auto steps = checkpoint::complete_steps(base + "/run/checkpoints");
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(steps.back(), static_cast<int64_t>(losses().size()));
    EXPECT_TRUE(std::filesystem::exists(base + "/run/report.html"));
  }
  /// Returns true if the output so far shows a finished step: no other line has a loss.
  static bool has_stepped(const std::string& output) { return output.find("  loss ") != std::string::npos; }
  std::string base;
};

}  // namespace colossal::test
