// `colossal bench` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "cli/outcome.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/ops/cpu.h"
#include "support/generated_text.h"
#include "support/temporary_folder.h"

namespace colossal::cli::bench_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

Outcome bench(const std::vector<std::string>& words) { return run_command("bench", words); }

TEST(Bench, ListsItsBenchmarks) {
  const auto outcome = bench({});
  EXPECT_EQ(outcome.status, 0);
  for (const char* name : {"\n  diffusion ", "\n  experts ", "\n  inference ", "\n  memory ", "\n  sequence ",
                           "\n  serve ", "\n  tensor-parallel ", "\n  zero "})
    EXPECT_THAT(outcome.out, HasSubstr(name));
  EXPECT_EQ(bench({"--help"}).out, outcome.out);
  const auto unknown = bench({"tensor-paralel"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("unknown benchmark `tensor-paralel`, did you mean `tensor-parallel`?"));
}

TEST(BenchInference, MeasuresSingleAndBatchedRequestsAndALoad) {
  const test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  const std::vector<std::string> words{
      "inference", "--from",      folder / "hf", "--kv-cache", "1MiB", "--prompt-tokens", "9", "--new-tokens",
      "6",         "--sequences", "1,3",         "--rounds",   "1",    "--requests",      "5"};
  std::vector<std::string> as_json = words;
  as_json.push_back("--json");
  const auto outcome = bench(as_json);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(result["sequences"].size(), 2U);
  EXPECT_EQ(result["sequences"][1]["count"], 3);
  for (const auto& row : result["sequences"])
    for (const char* key : {"first_token_seconds", "prompt_tokens_per_second", "tokens_per_second", "of_bound"})
      EXPECT_GT(row[key].get<double>(), 0) << key;
  EXPECT_EQ(result["load"]["requests"], 5);
  for (const char* key : {"first_token_seconds", "token_seconds", "request_seconds"})
    EXPECT_GE(result["load"][key]["p99"].get<double>(), result["load"][key]["p50"].get<double>()) << key;
  const auto table = bench(words);
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, ContainsRegex("\n +3 .*%\n"));
  EXPECT_THAT(table.out, HasSubstr("\nfirst token "));
  const auto refused = bench({"inference", "--from", folder / "hf", "--prompt-tokens", "90"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("must fit the model's positions"));
  const auto huge = bench({"inference", "--from", folder / "hf", "--new-tokens", "9223372036854775807"});
  EXPECT_EQ(huge.status, 2);
  EXPECT_THAT(huge.err, HasSubstr("--new-tokens"));
}

TEST(BenchInference, MeasuresNamedKernelsWithoutALoad) {
  const test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  const auto with = [&](const std::string& kernels) {
    return bench({"inference", "--from", folder / "hf", "--kv-cache", "1MiB", "--prompt-tokens", "5", "--new-tokens",
                  "3", "--sequences", "1", "--rounds", "1", "--requests", "0", "--json", "--kernels", kernels});
  };
  const auto portable = with("portable");
  ASSERT_EQ(portable.status, 0) << portable.err;
  const auto result = nlohmann::json::parse(portable.out);
  EXPECT_EQ(result["kernels"], "portable");
  EXPECT_FALSE(result.contains("load"));
  EXPECT_GT(result["cache_bytes_per_token"], 0);
  const auto best = with("auto");
  ASSERT_EQ(best.status, 0) << best.err;
  EXPECT_EQ(nlohmann::json::parse(best.out)["kernels"], ops::name(ops::best_instruction_set()));
  for (const auto set : ops::kInstructionSets) {
    if (ops::can_run(set)) continue;
    const auto refused = with(std::string(ops::name(set)));
    EXPECT_EQ(refused.status, 1);
    EXPECT_THAT(refused.err, HasSubstr("[cpu] this machine cannot run " + std::string(ops::name(set)) +
                                       ": its best kernels are " + ops::describe_best()));
  }
  const auto rate = bench({"inference", "--from", folder / "hf", "--requests", "0", "--rate", "2"});
  EXPECT_EQ(rate.status, 2);
  EXPECT_THAT(rate.err, HasSubstr("--rate has no effect with --requests 0, which measures no load"));
  const auto unknown = with("avx512-bf16");
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean `avx512bf16`?"));
}

// A parameter and a gradient take 2 bytes each, and the optimizer states 12. Padding is a thousandth.
TEST(BenchZero, PrintsARowForEachStageThatAgreesWithTheFormulas) {
  const auto outcome = bench({"zero", "--ranks", "1,2", "--hidden", "64", "--layers", "2"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream numbers(line);
    double ranks, zero, got, want;
    if (!(numbers >> ranks >> zero)) continue;
    ++rows;
    for (int column = 0; column < 4; ++column) {
      ASSERT_TRUE(numbers >> got >> want) << line;
      const bool turn = column == 0 && zero == 3;  // two chunks are still gathered at the start of backward
      EXPECT_LE(got, want * 1.02 + 0.002) << line;
      EXPECT_GE(got, want * (turn ? 0.6 : 0.99) - 0.002) << line;
    }
  }
  EXPECT_EQ(rows, 8);
  EXPECT_EQ(bench({"zero", "--hidden", "30"}).status, 2);
}

// There are 64 tokens with 4 heads of 8 features and 2 key heads. A hidden state of all tokens has 2048 elements, and
// keys and values together have as many.
TEST(BenchSequence, PrintsARowPerModeAndWritesTheReport) {
  const test::TemporaryFolder folder;
  const auto outcome = bench({"sequence", "--sequence", "64", "--heads", "4", "--kv-heads", "2", "--head-dim", "8",
                              "--ranks", "4,2,1", "--report", folder / "report.html"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("\n +1  ring +0 +0 +0 +0 +0 +0 "));
  EXPECT_THAT(outcome.out, ContainsRegex("\n +4  gather +6144 +6144 +6144 +6144 +0 +0 +2 +2 "));
  EXPECT_THAT(outcome.out, ContainsRegex("\n +4  ring +6144 +6144 +14336 +14336 +0 +0 +20 +20 "));
  EXPECT_THAT(outcome.out, ContainsRegex("\n +4  ring node 2 +6144 +6144 +14336 +14336 +8192 +8192 +20 +20 "));
  EXPECT_THAT(outcome.out, ContainsRegex("\n +2  ulysses +6144 +6144 +6144 +6144 +0 +0 +4 +4 "));
  EXPECT_THAT(outcome.out, ContainsRegex("\n +4  usp ulysses 2  [^\n]* 1\\.0000 +1\\.0000\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("left out")));
  const std::string page = read_file(folder / "report.html", 1 << 20);
  for (const char* part : {"64 tokens, heads 4, kv heads 2 of 8, causal", "<td>14336</td><td>14336</td>",
                           "Operations of the busiest rank over the mean", "class='line third'", "</html>"})
    EXPECT_THAT(page, HasSubstr(part));
}

TEST(BenchSequence, NamesModesThatDoNotFit) {
  const auto outcome = bench({"sequence", "--sequence", "7", "--heads", "3", "--head-dim", "4", "--ranks", "2,8"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr("\n2 ranks, ulysses: left out: the 3 attention heads of a rank must be divisible"));
  EXPECT_THAT(outcome.out, HasSubstr("\n8 ranks, ring: left out: each of the 8 ranks of parallel.sequence must have"));
  EXPECT_THAT(outcome.out, ContainsRegex("\n +2  ring "));
  EXPECT_EQ(bench({"sequence", "--ranks", "0"}).status, 2);
  const auto heads = bench({"sequence", "--heads", "4", "--kv-heads", "3"});
  EXPECT_EQ(heads.status, 2);
  EXPECT_THAT(heads.err, HasSubstr("--kv-heads must divide --heads: got 3 of 4"));
}

TEST(BenchDiffusion, PrintsRowsThatAgreeWithTheFormulas) {
  const auto outcome = bench({"diffusion", "--ranks", "1,2,3", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  std::vector<std::string> modes;
  for (const auto& row : result["rows"]) {
    modes.push_back(row["mode"]);
    EXPECT_EQ(row["sent"], row["formula"]) << row;
    EXPECT_GT(row["sent"], 0) << row;
  }
  EXPECT_THAT(modes, ::testing::ElementsAre("rows", "tensor", "guidance", "dsp", "ulysses", "ring", "rows", "dsp",
                                            "ulysses", "ring"));
  ASSERT_EQ(result["left_out"].size(), 2U);
  EXPECT_THAT(result["left_out"][0].get<std::string>(),
              HasSubstr("3 ranks, tensor: left out: parallel.tensor.size must divide"));
  EXPECT_THAT(result["left_out"][1].get<std::string>(),
              HasSubstr("3 ranks, guidance: left out: guidance needs an even number of ranks"));
}

// On one rank both columns are 0. Traffic counters and formula do not use the same numbers: the formula counts the
// choices of a plain loop.
TEST(BenchExperts, PrintsRowsThatAgreeWithTheFormula) {
  const auto outcome = bench({"experts", "--hidden", "16", "--ffn", "8", "--batch", "4", "--sequence", "16", "--rounds",
                              "1", "--ranks", "4,1,2", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result["left_out"].size(), 0U) << result["left_out"];
  EXPECT_EQ(result["assignments"], 128);
  ASSERT_EQ(result["rows"].size(), 6U);
  for (size_t i = 0; i < 6; ++i) {
    const auto& row = result["rows"][i];
    const int64_t ranks = int64_t{1} << (i / 2);
    EXPECT_EQ(row["ranks"], ranks);
    EXPECT_EQ(row["recompute"], i % 2 == 0 ? "none" : "block");
    EXPECT_EQ(row["sent"], row["formula"]) << row;
    EXPECT_EQ(row["formula"], (i % 2 == 0 ? 4 : 6) * 16 * row["remote"].get<int64_t>()) << row;
    EXPECT_EQ(row["sent"].get<int64_t>() > 0, ranks > 1) << row;
    EXPECT_EQ(row["counts"].get<int64_t>() > 0, ranks > 1) << row;
    EXPECT_EQ(row["sums"].get<int64_t>() > 0, ranks > 1) << row;
    EXPECT_EQ(row["other"], 0) << row;
    EXPECT_GT(row["seconds"].get<double>(), 0);
    EXPECT_EQ(row["expert_load"], result["rows"][0]["expert_load"]) << "the choices do not depend on the ranks";
    EXPECT_GE(row["rank_load"].get<double>(), 1);
  }
  EXPECT_EQ(result["rows"][0]["rank_load"], 1);
}

TEST(BenchExperts, SendsTokensByWayOfNodes) {
  const auto outcome = bench({"experts", "--hidden", "16", "--ffn", "8", "--batch", "4", "--sequence", "16", "--rounds",
                              "1", "--ranks", "1,4", "--node", "2", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result["node"], 2);
  ASSERT_EQ(result["left_out"].size(), 1U) << "one rank has no nodes";
  EXPECT_THAT(result["left_out"][0].get<std::string>(), HasSubstr("expert.node"));
  ASSERT_EQ(result["rows"].size(), 2U);
  for (const auto& row : result["rows"]) EXPECT_EQ(row["sent"], row["formula"]) << row;
}

TEST(BenchExperts, PrintsATableAndWritesTheReport) {
  const test::TemporaryFolder folder;
  const auto outcome = bench({"experts", "--hidden", "8", "--ffn", "8", "--experts", "6", "--batch", "4", "--sequence",
                              "4", "--rounds", "1", "--ranks", "1,2,4", "--report", folder / "report.html"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("hidden 8, 2 of 6 experts of 8, batch 4, sequence 4: 32 assignments\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("\n +1  none +0 +0 +0 +0 +0 +0 +0 "));
  EXPECT_THAT(outcome.out, ContainsRegex("\n +2  block +[1-9]"));
  EXPECT_THAT(outcome.out, HasSubstr("\n4 ranks: left out: the experts must be divisible by the ranks: got 6 experts "
                                     "on 4 ranks\n"));
  const std::string page = read_file(folder / "report.html", 1 << 20);
  for (const char* part :
       {"Elements of hidden states sent", "<td>2</td><td>block</td>", "4 ranks: left out", "</html>"})
    EXPECT_THAT(page, HasSubstr(part));
}

TEST(BenchExperts, RefusesInvalidSizes) {
  EXPECT_EQ(bench({"experts", "--ranks", "0"}).status, 2);
  const auto used = bench({"experts", "--experts", "2", "--used", "3"});
  EXPECT_EQ(used.status, 2);
  EXPECT_THAT(used.err, HasSubstr("--used must be at most --experts: got 3 of 2"));
}

// 64 tokens with 32 features: b*s*h = 2048, h*h = 1024.
TEST(BenchTensorParallel, PrintsARowPerModeAndWritesTheReport) {
  const test::TemporaryFolder folder;
  const auto outcome = bench({"tensor-parallel", "--hidden", "32", "--heads", "8", "--batch", "8", "--sequence", "8",
                              "--ranks", "8,4,1", "--report", folder / "report.html"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("\n +1  1d +0 +0 +0 +0 +0 +0 "));
  EXPECT_THAT(outcome.out, ContainsRegex("\n +4  1d +6144 +6144 +6144 +6144 +4 +4 "));
  EXPECT_THAT(outcome.out, ContainsRegex("\n +4  1d sequence +6144 +6144 +9216 +9216 +10 +10 "));
  EXPECT_THAT(outcome.out, ContainsRegex("\n +4  2d +6656 +6656 +13312 +13312 +48 +48 "));
  for (const char* mode : {"1d", "1d sequence keep_gathered", "2.5d depth 2", "3d", "3d keep_gathered"})
    EXPECT_THAT(outcome.out, ContainsRegex("\n +8  " + std::string(mode) + "  "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("left out")));
  const std::string page = read_file(folder / "report.html", 1 << 20);
  for (const char* part :
       {"b*s/h = 2", "<td>6656</td><td>6656</td>", "Elements sent per rank", "class='line seventh'", "</html>"})
    EXPECT_THAT(page, HasSubstr(part));
}

TEST(BenchTensorParallel, NamesModesThatDoNotFit) {
  const auto outcome =
      bench({"tensor-parallel", "--hidden", "32", "--heads", "2", "--batch", "3", "--sequence", "2", "--ranks", "4,8"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("\n +4  1d \\* "));  // 2 heads on 4 ranks
  EXPECT_THAT(outcome.out, HasSubstr("* heads or features are not divisible by the ranks: padded"));
  EXPECT_THAT(outcome.out, HasSubstr("\n4 ranks, 2d: left out: the rows of a batch must be divisible by the 2 ranks "
                                     "that split them: got 3; nearest: "));
  EXPECT_THAT(outcome.out,
              HasSubstr("\n4 ranks, 1d sequence: left out: the tokens of a row (data.sequence) must be divisible by"));
  EXPECT_THAT(outcome.out, HasSubstr("\n8 ranks, 3d: left out: the rows of a batch must be divisible by the 4 ranks"));
  EXPECT_THAT(outcome.out, Not(ContainsRegex("\n +4  2d")));
}

TEST(BenchTensorParallel, RefusesInvalidSizes) {
  EXPECT_EQ(bench({"tensor-parallel", "--ranks", "0"}).status, 2);
  EXPECT_EQ(bench({"tensor-parallel", "--ranks", "4,x"}).status, 2);
  EXPECT_EQ(bench({"tensor-parallel", "--hidden", "-3"}).status, 2);
  const auto heads = bench({"tensor-parallel", "--hidden", "32", "--heads", "5", "--ranks", "1"});
  EXPECT_THAT(heads.err + heads.out, HasSubstr("hidden must be divisible by heads: got hidden 32, heads 5"));
}

}  // namespace
}  // namespace colossal::cli::bench_test
