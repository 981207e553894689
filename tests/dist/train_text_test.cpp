// Text from a trained model: samples, `colossal generate`, and exports from which another run starts.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "colossal/report/metrics.h"
#include "dist/train_program.h"
#include "support/paths.h"

namespace colossal::test::train_text_test {
namespace {

TEST_F(TrainProgram, GeneratesFromARunAndFromItsExport) {
  ASSERT_EQ(run(train()).status, 0);
  const Words prompt{"--prompt", "line ", "--max-tokens", "20"};
  auto generate = [&](const std::string& from, const Words& flags) {
    Words words{program_path(), "generate", "--from", from};
    words.insert(words.end(), prompt.begin(), prompt.end());
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished outcome = run(words);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return outcome.output;
  };
  const std::string serial = generate(base + "/run", {"--timeout=60"});
  EXPECT_NE(serial.find("\nline "), std::string::npos) << serial;  // after the options in force
  EXPECT_EQ(generate(base + "/run", {"--parallel.tensor=2"}), serial);
  EXPECT_EQ(generate(base + "/run", {"--parallel.sequence=2", "--parallel.sequence.mode=ring"}), serial);
  EXPECT_EQ(generate(base + "/run",
                     {"--parallel.sequence=4", "--parallel.sequence.mode=usp", "--parallel.sequence.ulysses=2"}),
            serial);
  EXPECT_EQ(generate(base + "/run", {"--temperature=1", "--seed=4"}),
            generate(base + "/run", {"--temperature=1", "--seed=4"}));
  const Finished exported =
      run({program_path(), "export", "--from", base + "/run", "--to", base + "/hf", "--timeout", "60"});
  ASSERT_EQ(exported.status, 0) << exported.output;
  const Finished half =
      run({program_path(), "export", "--from", base + "/run", "--to", base + "/half", "--dtype", "bf16"});
  ASSERT_EQ(half.status, 0) << half.output;
  const auto bytes = [](const std::string& folder) {
    return static_cast<double>(std::filesystem::file_size(folder + "/model.safetensors"));
  };
  EXPECT_NEAR(bytes(base + "/half"), bytes(base + "/hf") / 2, 0.05 * bytes(base + "/hf"));
  EXPECT_TRUE(std::filesystem::exists(base + "/hf/model.safetensors"));
  const Finished narrow = run(train({"--precision.mode=bf16", "--precision.masters=false", "--training.steps=2",
                                     "--run.folder=" + base + "/narrow"}));
  ASSERT_EQ(narrow.status, 0) << narrow.output;
  const Finished narrow_export =
      run({program_path(), "export", "--from", base + "/narrow", "--to", base + "/narrow-hf"});
  EXPECT_EQ(narrow_export.status, 0) << narrow_export.output;
  // The export starts a training run: its first loss continues where the run ended.
  const Finished from = run(train({"--model.from=" + base + "/hf", "--model.hidden=0", "--model.layers=0",
                                   "--model.positions=0", "--run.folder=" + base + "/second"}));
  ASSERT_EQ(from.status, 0) << from.output;
  EXPECT_LT(report::read_metrics(base + "/second/metrics.jsonl").value("loss", 0), losses().front() - 0.3);
}

TEST_F(TrainProgram, LimitsTheSampleToTheTrainedPositions) {
  const auto sampled = [&](const Words& flags) {  // bytes
    const Finished outcome = run(train(flags));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    std::ifstream file(base + "/run/report.html");
    const std::string report{std::istreambuf_iterator<char>(file), {}};
    const size_t begin = report.find("<mark>line </mark>"), end = report.find("</pre>", begin);
    return begin == std::string::npos ? 0 : end - begin - std::string("<mark>line </mark>").size();
  };
  const Words sequence_24{"--overwrite", "--training.steps=60", "--optimizer.learning_rate=1e-2",
                          "--training.sample_prompt=line "};
  const auto with = [&](const char* tokens) {
    Words words = sequence_24;
    words.push_back(tokens);
    return words;
  };
  EXPECT_EQ(sampled(with("--training.sample_tokens=50")), 24u - 5u);  // the model has 64 positions
  EXPECT_EQ(sampled(with("--training.sample_tokens=10")), 10u);
}

TEST_F(TrainProgram, StartsANewLineAfterTheSample) {
  const Finished outcome = run(train({"--training.steps=2", "--training.sample_prompt=line "}));
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const size_t report = outcome.output.find("report: "), sample = outcome.output.find("\nline ");
  ASSERT_NE(sample, std::string::npos) << outcome.output;
  ASSERT_LT(sample, report) << outcome.output;
  const size_t begin = outcome.output.rfind('\n', report) + 1;  // "03:12:02 I  rank 0  report: "
  EXPECT_EQ(outcome.output.substr(begin + 8, 4), " I  ") << outcome.output;
}

}  // namespace
}  // namespace colossal::test::train_text_test
