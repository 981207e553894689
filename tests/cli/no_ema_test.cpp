// Commands that read a run with an average of its weights use it and say so, unless --no-ema is given.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/outcome.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/run/saved_model.h"
#include "support/generated_text.h"

namespace colossal::cli::no_ema_test {
namespace {

using testing::HasSubstr;
using testing::Not;

class NoEma : public testing::Test {
 protected:
  void SetUp() override {
    test::write_model(folder, "gpt2-tiny");
    run::Config config;
    config.model = {.from = folder / "hf"};
    config.data.tokenizer = "bytes";
    const RunFolder trained(folder / "run");
    trained.create();
    folder.write("run/config.toml", to_toml(config));
    folder.write("text.txt", "some words");
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
      const run::SavedModel saved = run::load_model(folder / "hf", mesh, {}, at::kCPU, {.tokenizer = "none"});
      checkpoint::TrainingState state;
      for (const nn::Parameter& p : saved.model->parameters()) {
        state.tensors.push_back({"model." + p.name, p.value.detach(), p.spec});
        state.tensors.push_back({"optimizer.ema." + p.name, p.value.detach() * 2, p.spec});
      }
      state.progress = {{"ema", 0.75}};
      checkpoint::save(trained.checkpoints(), 1, state, mesh.all(), mesh.coordinates(), 1);
    });
  }
  /// Runs a command twice, without and with --no-ema, and checks what it says.
  void expect_notice(const std::string& command, std::vector<std::string> words) const {
    words.insert(words.end(), {"--from", folder / "run"});
    const Outcome average = run_command(command, words);
    EXPECT_EQ(average.status, 0) << average.err;
    EXPECT_THAT(average.err, HasSubstr("uses the average of the weights (training.ema = 0.75); --no-ema takes"))
        << command;
    words.push_back("--no-ema");
    const Outcome last = run_command(command, words);
    EXPECT_EQ(last.status, 0) << last.err;
    EXPECT_THAT(last.err, Not(HasSubstr("uses the average"))) << command;
  }
  test::TemporaryFolder folder;
};

TEST_F(NoEma, BelongsToEveryCommandThatReadsARun) {
  expect_notice("generate", {"--prompt", "some", "--max-tokens", "2", "--tokenizer", "bytes"});
  expect_notice("evaluate", {"--perplexity", folder / "text.txt", "--tokenizer", "bytes"});
  expect_notice("embed", {"--text", "some", "--tokenizer", "bytes"});
  expect_notice("quantize", {"--to", folder / "quantized", "--group-size", "32"});
}

TEST_F(NoEma, ExportsTheLastWeights) {
  const auto exported = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--from", folder / "run", "--to", folder / "out"});
    const Outcome outcome = run_command("export", words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return checkpoint::SafetensorsReader(folder / "out/model.safetensors").tensor("transformer.ln_f.weight").clone();
  };
  const at::Tensor average = exported({}), last = exported({"--no-ema"});
  EXPECT_TRUE(at::equal(average, last * 2)) << average << last;
}

}  // namespace
}  // namespace colossal::cli::no_ema_test
