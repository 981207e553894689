// `colossal plan CONFIG` as a user runs it.
#include "colossal/cli/plan_run.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/outcome.h"
#include "colossal/base/file.h"
#include "support/temporary_folder.h"

namespace colossal::cli::plan_run_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

/// A tiny run, and a machine whose ranks share 1 GiB.
struct PlanOfARun {
  test::TemporaryFolder folder;
  std::string config = folder / "run.toml", profile = folder / "profile.toml";
  PlanOfARun() {
    write_file(config,
               "[model]\nname = 'gpt2-tiny'\n[data]\npath = 'missing.txt'\ntokenizer = 'bytes'\nsequence = 16\n"
               "[training]\nsteps = 20\nbatch_size = 24\n[parallel]\ndata = 2\n");
    write_file(profile,
               "device = { memory = \"1GiB\", bandwidth = 1e10, fp32 = 1e11, shared = true }\n"
               "node = { devices = 8, bandwidth = 1e9, latency = 1e-5 }\n");
  }
  Outcome run(std::vector<std::string> words) const {
    words.insert(words.begin(), {config, "--cluster", profile});
    return run_command("plan", std::move(words));
  }
};

TEST(PlanRun, WritesOneJsonObject) {
  const PlanOfARun command;
  const Outcome outcome = command.run({"--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);  // refuses a second value
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["fits"], true);
  EXPECT_THAT(json["remedies"], IsEmpty());
  EXPECT_EQ(json["roles"][0]["name"], "all ranks");
  EXPECT_GT(json["step_seconds"], 0);
}

// Folding models have a step rule, which adds fields to their batches, and ranks that cut their pairs.
TEST(PlanRun, PlansAFoldingModelOnAxialRanks) {
  const PlanOfARun command;
  write_file(command.config,
             "[model]\nname = 'alphafold2-tiny'\nlayers = 2\n[data]\npath = 'builtin-folds'\n[folding]\ncrop = 9\n"
             "[training]\nsteps = 2\nbatch_size = 2\n[parallel]\nsequence = { size = 2, mode = 'axial' }\n");
  for (const char* overlap : {"true", "false"}) {
    const Outcome outcome = command.run({"--json", std::string("--parallel.sequence.overlap=") + overlap});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(nlohmann::json::parse(outcome.out)["ranks"], 2);
  }
}

/// The data do not exist, and no run folder appears.
TEST(PlanRun, ReadsNoDataAndWritesNothing) {
  const PlanOfARun command;
  const Outcome outcome = command.run({"--run.folder=" + (command.folder / "run")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(StartsWith("859008 parameters, vocabulary 257\n2 ranks, "),
                                 HasSubstr("\nThe layout fits.\n"), HasSubstr("- one document a row\n")));
  EXPECT_FALSE(std::filesystem::exists(command.folder / "run"));
}

/// The published sizes: 124 million parameters and 50,257 ids.
TEST(PlanRun, PlansAPresetWithItsOwnVocabulary) {
  const PlanOfARun command;
  const auto planned = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"--json", "--model.name=gpt2-small", "--cluster", "h100-8x"});
    const Outcome outcome = run_command("plan", [&] {
      words.insert(words.begin(), command.config);
      return words;
    }());
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const auto own = planned({});
  EXPECT_EQ(own["parameters"], 124'439'808);
  EXPECT_EQ(own["vocabulary"], 50'257);
  EXPECT_THAT(own["assumptions"].dump(), HasSubstr("the vocabulary is that of gpt2-small, 50257 ids; a run with "));
  const auto given = planned({"--model.vocabulary=1000"});
  EXPECT_EQ(given["parameters"], 124'439'808 - 768 * (50'257 - 1000));
  EXPECT_EQ(given["vocabulary"], 1000);
  EXPECT_THAT(given["assumptions"].dump(), Not(HasSubstr("the vocabulary is")));
  EXPECT_EQ(planned({"--search", "--ranks", "2"})["vocabulary"], 50'257);
}

/// Rank 4 on the matrices [384, 128], [128, 128], [512, 128] and [128, 512] of each of the 4 blocks.
constexpr int64_t kTrainedByRank4 = 4 * 4 * (384 + 128 + 128 + 128 + 512 + 128 + 128 + 512);

TEST(PlanRun, SaysWhatAnAdapterNeedsAndWhere) {
  const PlanOfARun command;
  const std::vector<std::string> lora{"--adapter.kind=lora", "--adapter.rank=4"};
  const auto planned = [&](std::vector<std::string> words) {
    words.insert(words.end(), lora.begin(), lora.end());
    const Outcome outcome = command.run(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  const auto json = nlohmann::json::parse(planned({"--json"}));
  ASSERT_EQ(json.at("models").size(), 1u);
  const nlohmann::json& main = json["models"][0];
  EXPECT_EQ(main.at("name"), "");
  EXPECT_EQ(main.at("trained"), kTrainedByRank4);
  EXPECT_EQ(main.at("parameters"), json.at("parameters"));
  EXPECT_EQ(main.at("parameters"), 859'008 + kTrainedByRank4);
  EXPECT_EQ(main.at("needs").at(0).at("what"), "frozen parameters");
  int64_t sum = 0;
  for (const nlohmann::json& need : main.at("needs")) sum += need.at("bytes").get<int64_t>();
  EXPECT_EQ(main.at("bytes"), sum);
  const std::string on_host = planned({"--memory.host=256MiB"});
  EXPECT_THAT(on_host, HasSubstr("\nmain model: 891776 parameters, 32768 of them trained, "));
  EXPECT_THAT(on_host, ::testing::ContainsRegex("main model: .*, states [0-9.]+ KiB \\(host\\)\n"));
}

TEST(PlanRun, SetsTheNumberOfRanks) {
  const PlanOfARun command;
  const Outcome six = command.run({"--json", "--ranks", "6", "--parallel.tensor=2", "--training.batch_size=6"});
  ASSERT_EQ(six.status, 0) << six.err;
  EXPECT_EQ(nlohmann::json::parse(six.out)["ranks"], 6);
  const Outcome seven = command.run({"--ranks", "7", "--parallel.tensor=2"});
  EXPECT_EQ(seven.status, 1);
  EXPECT_THAT(seven.err, AllOf(HasSubstr("parallel.tensor = 2"), HasSubstr("got 7; the nearest are 6 and 8")));
  EXPECT_THAT(seven.out, IsEmpty());
}

/// Three replicas do not divide 8 samples.
TEST(PlanRun, SearchesWhateverTheLayoutOfTheFile) {
  const PlanOfARun command;
  const std::vector<std::string> illegal{"--training.batch_size=8", "--parallel.data=3"};
  EXPECT_EQ(command.run(illegal).status, 1);
  std::vector<std::string> searched = illegal;
  searched.insert(searched.end(), {"--search", "--ranks", "2", "--json"});
  const Outcome outcome = command.run(searched);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["ranks"], 2);
  searched.insert(searched.end(), {"--precision.mode=fp16", "--precision.masters=false"});
  EXPECT_EQ(command.run(searched).status, 1);  // the rest of the file is checked
}

TEST(PlanRun, ShowsProgressOnTerminalsOnly) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  std::FILE* screen = std::fopen(::ptsname(terminal), "w");
  ASSERT_NE(screen, nullptr);
  EXPECT_EQ(style_on_terminals(screen), ProgressStyle::kTerminal);
  std::fclose(screen);
  ::close(terminal);
  std::FILE* file = std::tmpfile();
  EXPECT_EQ(style_on_terminals(file), ProgressStyle::kSilent);
  std::fclose(file);
}

/// A layout that does not fit is an answer, not an error.
TEST(PlanRun, SaysThatALayoutDoesNotFit) {
  const PlanOfARun command;
  write_file(command.profile,
             "device = { memory = \"1MiB\", bandwidth = 1e10, fp32 = 1e11, shared = true }\n"
             "node = { devices = 8, bandwidth = 1e9, latency = 1e-5 }\n");
  const Outcome outcome = command.run({});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("The layout does not fit: the ranks of node 0 need "));
}

TEST(PlanRun, RefusesBadInput) {
  const PlanOfARun command;
  const Outcome unknown = run_command("plan", {command.config, "--cluster", "a100-9x"});
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean `a100-8x`?"));
  EXPECT_EQ(command.run({"--parallel.tensr=2"}).status, 1);
  EXPECT_THAT(command.run({"--data.sequence=1000000"}).err, HasSubstr("must not exceed the model's positions"));
  EXPECT_EQ(command.run({"--ranks", "0"}).status, 2);
  EXPECT_EQ(command.run({"--nonsense"}).status, 2);
  EXPECT_EQ(command.run({"--keep", "parallel.tensor"}).status, 2);
  EXPECT_THAT(command.run({"--mesh", "data=2"}).err, HasSubstr("--mesh has no effect without --graph"));
  EXPECT_EQ(run_command("plan", {command.folder / "none.toml"}).status, 1);
  const Outcome both = run_command("plan", {command.config, "--graph", "graph.json"});
  EXPECT_EQ(both.status, 2);
  EXPECT_THAT(run_command("plan", {"--graph", "g.json", "--ranks", "2"}).err, HasSubstr("--ranks has no effect with"));
  EXPECT_THAT(run_command("plan", {"--graph", "g.json", "--parallel.tensor=2"}).err,
              AllOf(HasSubstr("no effect with --graph"), Not(HasSubstr("[graph]"))));
}

}  // namespace
}  // namespace colossal::cli::plan_run_test
