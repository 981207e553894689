// Runs the program of an example on a small text that it can learn, in fp64, so that two runs can be compared.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/report/metrics.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace colossal::test {

/// A fixture for the program examples/`name`, whose config is `config` in that folder.
class TrainedExample : public testing::Test {
 protected:
  using Words = std::vector<std::string>;

  /// `flags` come before those of each run.
  TrainedExample(std::string name, std::string config, Words flags = {})
      : name_(std::move(name)), config_(std::move(config)), flags_(std::move(flags)) {}
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 400; ++i) text += concat("line ", i * 37 % 101, " of a text that can be learnt\n");
    write_file(folder / "text.txt", text);
  }
  /// Runs the program with these arguments.
  Finished program(const Words& flags) const {
    Words words{example_program(name_)};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_process({.command = words, .limit = std::chrono::seconds(120)});
  }
  /// Runs a command on the config, for six steps and with a run folder of that name.
  Finished run(const std::string& command, const std::string& run_name, const Words& flags) const {
    Words words{command,
                source_dir() + "/examples/" + name_ + "/" + config_,
                "--run.folder=" + (folder / run_name),
                "--run.device=cpu",
                "--run.matmul=mkl",
                "--data.path=" + (folder / "text.txt"),
                "--data.sequence=16",
                "--parallel.data=1",
                "--training.batch_size=8",
                "--training.steps=6",
                "--training.save_every=3",
                "--training.evaluate_batches=0",
                "--training.sample_tokens=0",
                "--precision.mode=fp64"};
    for (const Words* more : {&flags_, &flags}) words.insert(words.end(), more->begin(), more->end());
    return program(words);
  }
  /// Trains and returns the loss of each step.
  std::vector<double> losses(const std::string& run_name, const Words& flags) const {
    const Finished outcome = run("train", run_name, flags);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return report::read_metrics(folder / (run_name + "/metrics.jsonl")).values("loss", 0);
  }
  const TemporaryFolder folder;

 private:
  std::string name_, config_;
  Words flags_;
};

}  // namespace colossal::test
