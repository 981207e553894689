// Commands whose model is not there: each looks for the folder first, and says how to get it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "cli/outcome.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/generated_text.h"

namespace colossal::cli::missing_model_test {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

TEST(MissingModel, EndsEveryCommandWithTheFolder) {
  const test::TemporaryFolder folder;
  const std::string text = folder.write("text.txt", "a text\n");
  for (const std::string from : {"nope", "Qwen/Qwen2.5-0.5B"}) {
    const std::string config = folder.write("config.toml", concat("[model]\nfrom = \"", from, "\"\n"));
    const std::vector<Words> commands{
        {"chat", "--from", from},
        {"generate", "--from", from, "--prompt", "x"},
        {"serve", "--from", from},
        {"embed", "--from", from, "--input", text},
        {"evaluate", "--from", from, "--perplexity", text},
        {"export", "--from", from, "--to", folder / "exported"},
        {"quantize", "--from", from, "--to", folder / "quantized"},
        {"tokenize", "--tokenizer", from, text},
        {"plan", config, "--cluster", "h100-8x"},
        {"plan", config, "--cluster", "h100-8x", "--search"},
    };
    for (const Words& words : commands) {
      const Outcome outcome = run_command(words[0], {words.begin() + 1, words.end()});
      EXPECT_EQ(outcome.status, 1) << words[0];
      EXPECT_THAT(outcome.err, HasSubstr(concat("there is no ", words[0] == "tokenize" ? "" : "file or folder ", from)))
          << words[0];
      if (from != "nope")
        EXPECT_THAT(outcome.err, HasSubstr("`hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B`")) << words[0];
    }
  }
}

TEST(MissingModel, NamesTheRunThatNeedsIt) {
  const test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  const std::string config = folder / "run/config.toml", before = read_file(config, 1 << 20);
  const std::vector<std::array<std::string, 3>> sources{
      {"model.from", "from = \"\"", "from = \"gone\""},
      {"data.tokenizer", "tokenizer = \"bytes\"", "tokenizer = \"gone\""}};
  for (const auto& [key, line, moved] : sources) {
    std::string text = before;
    const size_t at = text.find(line);
    ASSERT_NE(at, std::string::npos) << text;
    write_file(config, text.replace(at, line.size(), moved));
    const Outcome outcome = run_command("generate", {"--from", folder / "run", "--prompt", "x"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.err, concat("colossal: [run] the run ", folder / "run", " needs ", key,
                                  " = \"gone\": there is no such file or folder in the current folder; put it back, or "
                                  "correct ",
                                  key, " in ", config, "\n"));
  }
}

TEST(MissingModel, RefusesQuantizedFoldersForTraining) {
  const test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  const Outcome quantized =
      run_command("quantize", {"--from", folder / "hf", "--to", folder / "int8", "--group-size", "8"});
  ASSERT_EQ(quantized.status, 0) << quantized.err;
  const std::string config = folder.write("config.toml", concat("[model]\nfrom = \"", folder / "int8", "\"\n"));
  EXPECT_THAT(
      run_command("plan", {config, "--cluster", "h100-8x"}).err,
      HasSubstr(concat("[model] model.from must be a folder whose weights are not quantized: got ", folder / "int8",
                       ", whose config.json has a quantization_config; name the folder of the "
                       "model before quantization, or write the weights as numbers with `colossal export ")));
  EXPECT_EQ(run_command("export", {"--from", folder / "int8", "--to", folder / "numbers"}).status, 0);
  folder.write("config.toml", concat("[model]\nfrom = \"", folder / "numbers", "\"\n"));
  const Outcome remedied = run_command("plan", {config, "--cluster", "h100-8x", "--data.sequence=16"});
  EXPECT_EQ(remedied.status, 0) << "the remedy works: " << remedied.err;
}

}  // namespace
}  // namespace colossal::cli::missing_model_test
