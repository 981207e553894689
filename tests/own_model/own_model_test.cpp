// A program with a custom model made of the library's layers. The test docs.own-model builds it against an
// installation, as the tutorial docs/tutorials/own-model.md describes.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "colossal/report/metrics.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace colossal::test::own_model_test {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

Finished run(const std::string& program, Words words, const Words& flags) {
  words.insert(words.begin(), program);
  words.insert(words.end(), flags.begin(), flags.end());
  return run_process({.command = words, .limit = std::chrono::seconds(120)});
}

std::string config_file() { return source_dir() + "/examples/own_model/own_model.toml"; }

class OwnModel : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(folder / "text.txt");
    for (int i = 0; i < 400; ++i) text << "line " << i * 37 % 101 << " of a text that can be learnt\n";
    text.close();
    ASSERT_TRUE(fs::exists(program)) << program << " must be built: run the test docs.own-model first";
  }
  /// Trains the model for 8 steps in fp64 on the test's own text. Returns the losses.
  std::vector<double> losses(const std::string& name, const Words& flags) const {
    Words all{"train",
              config_file(),
              "--run.folder=" + (folder / name),
              "--run.device=cpu",
              "--run.matmul=mkl",
              "--data.path=" + (folder / "text.txt"),
              "--data.sequence=24",
              "--parallel.data=1",
              "--training.steps=8",
              "--training.batch_size=8",
              "--training.evaluate_batches=0",
              "--training.sample_tokens=0",
              "--optimizer.warmup_steps=2",
              "--precision.mode=fp64"};
    const Finished outcome = run(program, all, flags);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return report::read_metrics(folder / (name + "/metrics.jsonl")).values("loss", 0);
  }
  const TemporaryFolder folder;
  const std::string program = example_program("own_model");
};

// Eight ranks (two stages, two replicas, matrices split in two, ZeRO 1) must give the losses of one process. A config
// key that only this model has must have an effect. A folder in the format of transformers must load as the same model.
TEST_F(OwnModel, EqualsOneProcessUnderTensorPipelineAndZero) {
  const std::vector<double> want = losses("one", {});
  ASSERT_EQ(want.size(), 8u);
  EXPECT_LT(want.back(), want.front());
  const std::vector<double> got =
      losses("eight", {"--parallel.tensor=2", "--parallel.pipeline=2", "--parallel.data=2", "--parallel.zero=1"});
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12 * want[i]) << "step " << i + 1;

  const std::vector<double> serial = losses("serial", {"--model.parallel=false"});
  ASSERT_EQ(serial.size(), want.size());
  EXPECT_GT(std::abs(serial.back() - want.back()), 1e-6) << "model.parallel changes nothing";
  const Finished unknown = run(program, {"train", config_file(), "--model.rotar=0.5"}, {});
  EXPECT_NE(unknown.output.find("did you mean `model.rotary`"), std::string::npos) << unknown.output;

  const Finished exported = run(program, {"export", "--from", folder / "eight", "--to", folder / "hf"}, {});
  ASSERT_EQ(exported.status, 0) << exported.output;
  const std::vector<double> imported = losses("imported", {"--model.from=" + (folder / "hf")});
  ASSERT_EQ(imported.size(), want.size());
  EXPECT_LT(imported.front(), want.front() - 0.3) << "it begins where the other run ended";
  const Finished generated = run(
      program, {"generate", "--from", folder / "hf", "--tokenizer=bytes", "--prompt", "line ", "--max-tokens=8"}, {});
  EXPECT_EQ(generated.status, 0) << generated.output;
  const Finished same =
      run(program, {"generate", "--from", folder / "eight", "--prompt", "line ", "--max-tokens=8"}, {});
  EXPECT_EQ(generated.output, same.output);
}

}  // namespace
}  // namespace colossal::test::own_model_test
