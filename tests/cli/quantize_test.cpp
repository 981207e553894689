// `colossal quantize` and `colossal evaluate`, as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "cli/outcome.h"
#include "colossal/base/json.h"
#include "support/generated_text.h"

namespace colossal::cli::quantize_test {
namespace {

using ::testing::HasSubstr;

class Quantize : public testing::Test {
 protected:
  Outcome quantize(std::vector<std::string> words, const std::string& from = "hf") {
    words.insert(words.end(), {"--from", folder / from, "--to", folder / "codes"});
    const auto reads = [](const std::string& word) { return word == "--data" || word == "--perplexity"; };
    if (std::any_of(words.begin(), words.end(), reads)) words.insert(words.end(), {"--tokenizer", "bytes"});
    return run_command("quantize", words);
  }
  /// Returns the negative log-likelihood in nats per token.
  double surprise(const std::string& from, std::vector<std::string> words = {}) {
    words.insert(words.end(), {"--from", folder / from, "--perplexity", text, "--tokenizer", "bytes", "--json"});
    const Outcome outcome = run_command("evaluate", words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out).at("nll");
  }
  test::TemporaryFolder folder;
  std::string text = folder.write("text", "What is said here, and said again: here it is said.");
};

TEST_F(Quantize, WritesFoldersThatLoadQuantized) {
  for (const std::string model : {"llama-tiny", "gpt2-tiny"}) {  // folders hold transposed matrices for gpt2
    test::write_model(folder, model);
    const double before = surprise("hf");
    for (const std::string method : {"rtn", "gptq", "awq", "smoothquant"}) {
      std::vector<std::string> words{"--method", method, "--group-size", "32", "--perplexity", text};
      if (method != "rtn") words.insert(words.end(), {"--data", text});
      const Outcome outcome = quantize(words);
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      double said_before = 0, said_after = 0;
      ASSERT_EQ(std::sscanf(outcome.out.c_str(), "perplexity before: %lf (%*d tokens)\nperplexity after: %lf",
                            &said_before, &said_after),
                2)
          << outcome.out;
      EXPECT_NEAR(std::log(said_before), before, 1e-4);
      // Other weights of the folder are fp16, with rounding errors of 2^-11. Activations are quantized too if the
      // weights are.
      EXPECT_NEAR(surprise("codes", {"--precision", "fp64"}), std::log(said_after), 5e-3) << model << " " << method;
      EXPECT_NEAR(surprise("codes"), std::log(said_after), 0.2) << model << " " << method;
      std::filesystem::remove_all(folder / "codes");
    }
    std::filesystem::remove_all(folder / "hf");
    std::filesystem::remove_all(folder / "run");
  }
}

TEST_F(Quantize, WritesDequantizedWeights) {
  test::write_model(folder, "llama-tiny");
  ASSERT_EQ(quantize({"--bits", "4", "--zero-points", "--group-size", "16", "--numbers"}).status, 0);
  EXPECT_THAT(run_command("info", {folder / "codes"}).out, ::testing::Not(HasSubstr("qweight")));
  EXPECT_NE(surprise("codes"), surprise("hf"));
}

// Four tokens choose at most eight of the eight experts of a block, and some of them twice.
TEST_F(Quantize, SaysHowManyExpertsNoTokenChose) {
  test::write_model(folder, "mixtral-tiny");
  const auto outcome =
      quantize({"--method", "gptq", "--group-size", "32", "--data", text, "--samples", "1", "--length", "4"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("no token of --data chose "));
  EXPECT_THAT(outcome.err, HasSubstr(" of 40 experts: they are rounded to nearest"));
}

TEST_F(Quantize, RefusesInvalidOptions) {
  test::write_model(folder, "llama-tiny");
  EXPECT_THAT(quantize({"--method", "gptq"}).err, HasSubstr("name a text file with --data"));
  EXPECT_THAT(quantize({"--group-size", "12"}).err, HasSubstr("a multiple of 8"));
  EXPECT_THAT(quantize({"--bits", "3"}).err, HasSubstr("--bits"));
  EXPECT_THAT(quantize({"--perplexity", folder / "nothing"}).err, HasSubstr("cannot read the file of texts: "));
  const auto to = [&](const std::string& path) {
    return run_command("quantize", {"--from", folder / "hf", "--to", path}).err;
  };
  EXPECT_THAT(to((folder / "hf") + "/"), HasSubstr("--to must not be --from, which would be overwritten"));
  EXPECT_THAT(to(folder / "q.gguf"), HasSubstr("--to must be a folder"));
  EXPECT_THAT(run_command("export", {"--from", folder / "hf", "--to", folder / "hf"}).err,
              HasSubstr("--to must not be --from, which would be overwritten"));
  EXPECT_THAT(quantize({"--zero-points"}).err, HasSubstr("zero points (--zero-points) need 4 bits (--bits 4): got 8"));
}

TEST_F(Quantize, RefusesOptionsWithoutEffect) {
  test::write_model(folder, "llama-tiny");
  EXPECT_THAT(run_command("evaluate", {"--from", folder / "hf", "--perplexity", "/dev/null", "--tokenizer", "bytes",
                                       "--parallel.tensor", "2"})
                  .err,
              HasSubstr("/dev/null must be a regular file if several ranks read it"));
  EXPECT_THAT(run_command("embed", {"--from", folder / "hf", "--input", "/dev/null", "--output", folder / "x.npy"}).err,
              HasSubstr("/dev/null must be a regular file if an .npy file is written"));
  EXPECT_THAT(quantize({"--data", text}).err, HasSubstr("--data has no effect with --method rtn"));
  EXPECT_THAT(quantize({"--samples", "4", "--length", "8"}).err,
              HasSubstr("--samples and --length have no effect without --data"));
  EXPECT_THAT(quantize({"--tokenizer", "bytes"}).err, HasSubstr("--tokenizer has no effect without --data or"));
  EXPECT_THAT(run_command("evaluate", {"--from", folder / "hf", "--perplexity", text, "--tokenizer", "none"}).err,
              HasSubstr("--tokenizer must be bytes, or a tokenizer's folder or file: got none"));
  EXPECT_THAT(run_command("evaluate", {"--from", folder / "hf", "--perplexity", text, "--group-size", "32"}).err,
              HasSubstr("--group-size has no effect without --quantize int8 or int4"));
}

TEST_F(Quantize, EvaluatesWithBudgetsAndQuantizedWeights) {
  test::write_model(folder, "llama-tiny");
  const double alone = surprise("hf");
  EXPECT_NEAR(surprise("run"), alone, 1e-6);
  EXPECT_NEAR(surprise("hf", {"--memory.host", "1MiB", "--memory.disk", folder / "disk"}), alone, 1e-4);
  EXPECT_NEAR(surprise("hf", {"--quantize", "int8", "--group-size", "32"}), alone, 0.2);
}

}  // namespace
}  // namespace colossal::cli::quantize_test
