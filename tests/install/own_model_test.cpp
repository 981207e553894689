// A program with a model of its own over the layers, built against the installed library.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "colossal/report/metrics.h"
#include "install/installed.h"

namespace colossal::test::own_model_test {
namespace {

namespace fs = std::filesystem;

class OwnModel : public Installed {
 protected:
  void SetUp() override {
    Installed::SetUp();
    std::ofstream text(base + "/text.txt");
    for (int i = 0; i < 400; ++i) text << "line " << i * 37 % 101 << " of a text that can be learnt\n";
    text.close();
    program = built("own_model");
    ASSERT_NE(program, "");
  }
  /// The losses of a run of `steps` steps in fp64 of a model of four blocks, on files of the test's own.
  std::vector<double> losses(const std::string& name, const Words& flags) const {
    Words all{"train",
              source("own_model") + "/own_model.toml",
              "--run.folder=" + base + "/" + name,
              "--run.device=cpu",
              "--run.matmul=mkl",
              "--data.path=" + base + "/text.txt",
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
    std::vector<double> out;
    for (const auto& m : report::read_metrics(base + "/" + name + "/metrics.jsonl")) out.push_back(m.loss);
    return out;
  }
  std::string program;
};

// Eight ranks of two stages, two replicas and two shares of each matrix, with states shared out, go the way of one
// process; a config key that only this model has is heard; and what a folder of transformers holds is the model.
TEST_F(OwnModel, RunsUnderTensorPipelineAndZeroAsOneProcess) {
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
  const Finished unknown = run(program, {"train", source("own_model") + "/own_model.toml", "--model.rotar=0.5"}, {});
  EXPECT_NE(unknown.output.find("did you mean `model.rotary`"), std::string::npos) << unknown.output;

  const Finished exported = run(program, {"export", "--from", base + "/eight", "--to", base + "/hf"}, {});
  ASSERT_EQ(exported.status, 0) << exported.output;
  const std::vector<double> imported = losses("imported", {"--model.from=" + base + "/hf"});
  ASSERT_EQ(imported.size(), want.size());
  EXPECT_LT(imported.front(), want.front() - 0.3) << "it begins where the other run ended";
  const Finished generated = run(
      program, {"generate", "--from", base + "/hf", "--tokenizer=bytes", "--prompt", "line ", "--max-tokens=8"}, {});
  EXPECT_EQ(generated.status, 0) << generated.output;
  const Finished same =
      run(program, {"generate", "--from", base + "/eight", "--prompt", "line ", "--max-tokens=8"}, {});
  EXPECT_EQ(generated.output, same.output);
}

}  // namespace
}  // namespace colossal::test::own_model_test
