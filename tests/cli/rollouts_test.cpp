// `colossal rollouts` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/outcome.h"
#include "colossal/align/rollouts/records.h"
#include "colossal/base/json.h"
#include "colossal/base/run_folder.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "support/temporary_folder.h"

namespace colossal::cli::rollouts_test {
namespace {

using ::testing::HasSubstr;

std::vector<int64_t> ids_of(std::string_view text) {
  std::vector<int64_t> ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

/// Writes the rollouts of two prompts with two answers each. `is_late` changes the order of all records and the rank
/// that writes them.
void write_run(const test::TemporaryFolder& folder, const std::string& name, bool is_late = false) {
  folder.write(name + "/tokenizer.json", text::files_of_bytes().tokenizer.dump());
  const Log log = Log::silent();
  const std::string rollouts = RunFolder(folder / name).rollouts();
  std::vector<std::vector<int64_t>> answers{{0, 0}, {0, 1}, {1, 0}, {1, 1}};
  if (is_late) std::swap(answers[0], answers[3]);
  for (const std::vector<int64_t>& one : answers) {
    const int64_t prompt = one[0], number = one[1];
    align::RolloutStep step =
        align::RolloutRecords(rollouts, is_late && number == 0, log).open(12, {"draws", "scores"});
    step.begin({.index = prompt,
                .ids = ids_of(prompt == 0 ? "31=" : "42="),
                .line = prompt == 0 ? R"({"prompt": "31=", "answer": "13"})" : R"({"answer": "24", "prompt": "42="})"});
    std::vector<int64_t> ids = ids_of(number == 0 ? "13" : "\033\n9");
    if (number == 0) ids.push_back(256);
    step.add(align::RolloutAnswer{.prompt = prompt,
                                  .number = number,
                                  .version = 11,
                                  .finish_reason = number == 0 ? "stop" : "length",
                                  .ids = ids,
                                  .log_probabilities = std::vector<double>(ids.size(), -0.1)});
    if (prompt == 1 && number == 1) continue;
    align::Score score{.value = 1 - prompt, .parts = {{"exact", 1 - prompt}}};
    if (number == 1) score = {.text = "exact: the answer must be 13\nnot 9", .is_fault = true};
    step.add(align::RolloutScore{prompt, number, score});
  }
  align::RolloutStep other = align::RolloutRecords(rollouts, 0, log).open(3, {"draws", "scores"});
  other.begin({.index = 0, .ids = ids_of("1="), .line = "{}"});
  other.add(align::RolloutAnswer{.finish_reason = "stop", .ids = {256}, .log_probabilities = {-2}});
}

TEST(RolloutsCommand, PrintsAStep) {
  const test::TemporaryFolder folder;
  write_run(folder, "a");
  const auto outcome = run_command("rollouts", {folder / "a", "--step", "12"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "step 12: 2 prompts, 4 answers, 2 scored, mean score 0.5\n"
            "\n"
            "prompt 0\n"
            "  31=\n"
            "  answer 0: score 1 (exact 1), 3 tokens, stop\n"
            "    13\n"
            "  answer 1: no score after a fault, 3 tokens, length\n"
            "    ?\n"
            "    9\n"
            "    | exact: the answer must be 13\n"
            "    | not 9\n"
            "\n"
            "prompt 1\n"
            "  42=\n"
            "  answer 0: score 0 (exact 0), 3 tokens, stop\n"
            "    13\n"
            "  answer 1: not scored yet, 3 tokens, length\n"
            "    ?\n"
            "    9\n");
}

TEST(RolloutsCommand, KeepsControlCharactersFromTheTerminal) {
  const test::TemporaryFolder folder;
  write_run(folder, "a");
  const Log log = Log::silent();
  align::RolloutStep step = align::RolloutRecords(RunFolder(folder / "a").rollouts(), 0, log).open(20, {"d", "s"});
  step.begin({.index = 0, .ids = ids_of("1\x1b="), .line = "{}"});
  step.add(align::RolloutAnswer{.finish_reason = "st\x1bop",
                                .ids = ids_of("\xc2\x9b"
                                              "2J\xc2\xa9\x7f"),
                                .log_probabilities = {-1, -1, -1, -1, -1, -1, -1}});
  step.add(align::RolloutScore{
      0, 0, {.value = 1, .parts = {{"\x1b[2J\na\tb\xc2\x80", 1}}, .text = "\x1b]0;title\x07\ttab\xff\xc2\x9b"}});
  const auto outcome = run_command("rollouts", {folder / "a", "--step", "20"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "step 20: 1 prompts, 1 answers, 1 scored, mean score 1\n"
            "\n"
            "prompt 0\n"
            "  1?=\n"
            "  answer 0: score 1 (?[2J?a?b? 1), 7 tokens, st?op\n"
            "    ?2J\xc2\xa9?\n"
            "    | ?]0;title?\ttab\xef\xbf\xbd?\n");
}

TEST(RolloutsCommand, OmitsStepsWithoutRecords) {
  const test::TemporaryFolder folder;
  write_run(folder, "a");
  const std::string shown = run_command("rollouts", {folder / "a"}).out;
  std::filesystem::create_directories(folder / "a/rollouts/step-000007");  // a kill came before the first record
  EXPECT_EQ(run_command("rollouts", {folder / "a"}).out, shown);
  const auto outcome = run_command("rollouts", {folder / "a", "--step=7"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("got 7; it has 3, 12 (rollout.keep_steps)"));
}

TEST(RolloutsCommand, PrintsALineOfJsonPerAnswer) {
  const test::TemporaryFolder folder;
  write_run(folder, "a");
  const auto outcome = run_command("rollouts", {folder / "a", "--step=12", "--json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 4);
  EXPECT_EQ(outcome.out.substr(0, outcome.out.find('\n')),
            R"({"id":"12/0/0","step":12,"group":0,"number":0,"prompt":"31=","completion":"13","finish_reason":"stop",)"
            R"("is_scored":true,"score":1.0,"scores":{"exact":1.0},"text":"","is_fault":false,"version":11,)"
            R"("ids":[49,51,256],"log_probabilities":[-0.1,-0.1,-0.1],"line":{"prompt":"31=","answer":"13"}})");
  EXPECT_THAT(outcome.out, HasSubstr(R"("is_scored":true,"score":null,"scores":{},"text":"exact: the answer must be )"
                                     R"(13\nnot 9","is_fault":true)"));
  EXPECT_THAT(outcome.out, HasSubstr(R"("id":"12/1/1")"));
  EXPECT_THAT(outcome.out, HasSubstr(R"("is_scored":false,"score":null)"));
}

TEST(RolloutsCommand, PrintsEqualRunsEqually) {
  const test::TemporaryFolder folder;
  write_run(folder, "a");
  write_run(folder, "b", true);
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{}, {"--json"}, {"--step=12"}, {"--step=12", "--json"}}) {
    const auto shown = [&](const std::string& run) {
      std::vector<std::string> words{folder / run};
      words.insert(words.end(), flags.begin(), flags.end());
      return run_command("rollouts", words).out;
    };
    EXPECT_NE(shown("a"), "");
    EXPECT_EQ(shown("a"), shown("b"));
  }
}

TEST(RolloutsCommand, ListsTheSteps) {
  const test::TemporaryFolder folder;
  write_run(folder, "a");
  const auto outcome = run_command("rollouts", {folder / "a"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "    step  prompts  answers   scored  mean score\n"
            "       3        1        1        0           -\n"
            "      12        2        4        2         0.5\n");
  EXPECT_EQ(run_command("rollouts", {folder / "a", "--json"}).out,
            R"({"step":3,"prompts":1,"answers":1,"scored":0,"mean_score":null})"
            "\n"
            R"({"step":12,"prompts":2,"answers":4,"scored":2,"mean_score":0.5})"
            "\n");
}

TEST(RolloutsCommand, RefusesRunsAndStepsThatItDoesNotHave) {
  const test::TemporaryFolder folder;
  write_run(folder, "a");
  const std::string run = folder / "a", empty = folder / "empty";
  std::filesystem::create_directories(empty);
  for (const int step : {4, 5}) {
    std::filesystem::copy(run + "/rollouts/step-000003", run + "/rollouts/step-00000" + std::to_string(step));
  }
  const auto message = [&](const std::vector<std::string>& words) {
    const auto outcome = run_command("rollouts", words);
    EXPECT_NE(outcome.status, 0);
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_THAT(message({empty}), HasSubstr(empty + " must be a run that learns from its own answers: got a folder "
                                                  "without rollouts"));
  EXPECT_THAT(message({folder / "none", "--step=1"}), HasSubstr("there is no folder " + (folder / "none")));
  EXPECT_THAT(message({run, "--step=6"}), HasSubstr("--step must be a step whose answers " + run +
                                                    " has: got 6; it has 3 to 5, 12 (rollout.keep_steps)"));
  EXPECT_THAT(message({run, "--step=-1"}), HasSubstr("got -1"));
  EXPECT_THAT(message({}), HasSubstr("run is required"));
}

}  // namespace
}  // namespace colossal::cli::rollouts_test
