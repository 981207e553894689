// The command line as a user sees it: texts, messages, exit statuses.
#include "colossal/cli/main.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/outcome.h"
#include "colossal/base/error.h"
#include "colossal/base/version.h"
#include "colossal/cli/arguments.h"
#include "colossal/cli/commands.h"
#include "colossal/ops/cpu.h"
#include "support/paths.h"

namespace colossal::cli::main_test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

template <class Work>
Outcome capture(const Work& work) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int status = work();
  return {status, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

Outcome colossal(std::vector<std::string> words) {
  words.insert(words.begin(), "colossal");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  return capture([&] { return main(static_cast<int>(argv.size()), argv.data()); });
}

void expect_misuse(const std::vector<std::string>& words, const std::string& message) {
  const auto outcome = colossal(words);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, MatchesRegex("colossal( [a-z-]+)?: [^:]*(.|\n)*"));
  EXPECT_THAT(outcome.err, HasSubstr(message));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

TEST(Cli, PrintsTheVersionInOneLine) {
  for (const char* word : {"--version", "-V"}) {
    const auto outcome = colossal({word});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.out, std::string("colossal ") + version() + "\n");
  }
}

TEST(Cli, HelpListsEveryCommand) {
  const auto outcome = colossal({"help"});
  EXPECT_EQ(outcome.status, 0);
  for (const auto& name : names_of(commands())) EXPECT_THAT(outcome.out, HasSubstr("\n  " + name + " ")) << name;
  EXPECT_EQ(colossal({}).out, outcome.out);
  EXPECT_EQ(colossal({"--help"}).out, outcome.out);
}

TEST(Cli, PrintsHelpOfEveryCommand) {
  for (const auto& command : commands()) {
    const auto by_flag = colossal({command.name, "--help"}), by_help = colossal({"help", command.name});
    EXPECT_EQ(by_flag.status, 0) << command.name;
    EXPECT_GT(by_flag.out.size(), 50u) << command.name;
    EXPECT_EQ(by_help.out, by_flag.out) << command.name;
    EXPECT_EQ(by_flag.err, "") << command.name;
  }
}

TEST(Cli, HasUniqueCommandsWithOneLineHelps) {
  auto names = names_of(commands());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  for (const auto& command : commands()) EXPECT_THAT(command.help, Not(HasSubstr("\n"))) << command.name;
}

TEST(Cli, HelpConfigNamesEverySectionWithDefaults) {
  const auto outcome = colossal({"help", "config"});
  EXPECT_EQ(outcome.status, 0);
  for (const char* section : {"run", "model", "data", "parallel", "parallel.tensor", "optimizer", "training"}) {
    EXPECT_THAT(outcome.out, HasSubstr("[" + std::string(section) + "]\n")) << section;
  }
  EXPECT_THAT(outcome.out, HasSubstr("  steps = "));
  // `help` must not load LibTorch, so it refers to `colossal models`.
  EXPECT_THAT(outcome.out, HasSubstr("`colossal models` lists the keys of [model]"));
}

TEST(Cli, HelpConfigOfOneSection) {
  const auto outcome = colossal({"help", "config", "parallel"});
  EXPECT_THAT(outcome.out, HasSubstr("[parallel.tensor]\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("[training]")));
  EXPECT_THAT(colossal({"help", "config", "training.steps"}).out, HasSubstr("[training]\n"));
  expect_misuse({"help", "config", "paralel"}, "no section or key `paralel`, did you mean `parallel`?");
  expect_misuse({"help", "config", "model.objective"},
                "no section or key `model.objective`; `colossal models` lists the keys of [model] that only one "
                "architecture has");
}

TEST(Cli, RefusesUnknownArguments) {
  expect_misuse({"trian"}, "unknown command `trian`, did you mean `train`?");
  expect_misuse({"zzzz"}, "unknown command `zzzz`; `colossal help` lists the commands");
  expect_misuse({"help", "inof"}, "no help on `inof`, did you mean `info`?");
  expect_misuse({"help", "zzzz"}, "no help on `zzzz`; `colossal help` lists the commands");
  expect_misuse({"info", "--nonsense"}, "colossal info: unknown option --nonsense; see `colossal info --help`");
  expect_misuse({"info", "--no-mesure"}, "colossal info: unknown option --no-mesure, did you mean `--no-measure`?");
  expect_misuse({"generate", "--from", "x", "--max-tokens", "-1"}, "--max-tokens: Value -1 is too small; see ");
  expect_misuse({"train", "x.toml", "y.toml"}, "y.toml");
}

TEST(Cli, EndsWithStatusOneAfterAnError) {
  const auto outcome = colossal({"train", "/nonexistent/x.toml"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.err, "colossal: [config] cannot open /nonexistent/x.toml: No such file or directory\n");
}

TEST(Cli, GenerateRefusesAModelOfImages) {
  const std::string folder = testing::TempDir() + "/cli-vit";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json")
      << R"({"model_type": "vit", "image_size": 32, "patch_size": 4, "hidden_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "num_labels": 10})";
  const auto outcome = colossal({"generate", "--from", folder, "--prompt", "a cat"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("holds a vit, which classifies images: it has no text to continue"));
}

TEST(Cli, ListsModelsWithTheirKeys) {
  const auto outcome = colossal({"models"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("bert, which fills in masked tokens: bert-tiny bert-base bert-large\n"));
  EXPECT_THAT(outcome.out, HasSubstr("keys, with the values of vit-tiny-cifar:\n  side = 32\n"));
  EXPECT_THAT(outcome.out, HasSubstr("  rope_theta = 10000.0\n"));
}

TEST(Cli, InfoShowsTheMachine) {
  const auto outcome = colossal({"info", "--no-measure"});
  EXPECT_EQ(outcome.status, 0);
  for (const char* row : {"libtorch", "processor", "cores", "instruction sets", "memory"}) {
    EXPECT_THAT(outcome.out, HasSubstr("\n" + std::string(row) + "  ")) << row;
  }
  const auto best = ops::best_instruction_set();
  EXPECT_THAT(outcome.out, HasSubstr("\nkernels use           " + std::string(ops::name(ops::general_set(best))) +
                                     "\npacked weights        " + ops::describe_best() + "\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("FLOP")));
}

TEST(Cli, InfoMeasuresPeaks) {
  const auto outcome = colossal({"info"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("matmul fp32 +[1-9][0-9]* GFLOP/s"));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("matmul bf16 +[1-9][0-9]* GFLOP/s"));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("memory bandwidth +[1-9][0-9.]* GB/s"));
}

TEST(Cli, FailsIfItsOutputCannotBeWritten) {
  const std::vector<std::vector<std::string>> printing{{"--version"},
                                                       {"help"},
                                                       {"help", "config"},
                                                       {"train", "--help"},
                                                       {"models"},
                                                       {"info", "--no-measure"},
                                                       {"bench"},
                                                       {"schedule", "--name", "1f1b"},
                                                       {"schedule-lr", "--training.steps=30"}};
  for (const auto& words : printing) {
    const auto outcome = run_on_full_disk(words);
    EXPECT_EQ(outcome.status, 1) << words[0];
    EXPECT_THAT(outcome.err, HasSubstr("colossal: [output] standard output cannot be written: ")) << words[0];
  }
  EXPECT_EQ(run_on_full_disk({"trian"}).status, 2) << "the first failure counts";
}

TEST(EndWithMessage, DistinguishesKindsOfFailure) {
  const auto failure = [](auto error) {
    return capture([&] { return end_with_message([&]() -> int { throw error; }); });
  };
  EXPECT_EQ(failure(Error("mesh", "too small")).err, "colossal: [mesh] too small\n");
  EXPECT_EQ(failure(Error("mesh", "too small")).status, 1);
  EXPECT_EQ(failure(UsageError("what?")).err, "colossal: what?\n");
  EXPECT_EQ(failure(UsageError("what?")).status, 2);
  EXPECT_EQ(failure(HelpWanted("usage\n")).out, "usage\n");
  EXPECT_EQ(failure(HelpWanted("usage\n")).status, 0);
  EXPECT_THAT(failure(std::bad_alloc()).err, HasSubstr("[memory] out of memory"));
  EXPECT_EQ(failure(std::filesystem::filesystem_error("cannot copy file", "a", "b",
                                                      std::make_error_code(std::errc::no_space_on_device)))
                .err,
            "colossal: [file] a to b: No space left on device\n");
  EXPECT_EQ(failure(std::runtime_error("one\ntwo")).err, "colossal: [libtorch] one\n");
  EXPECT_EQ(capture([] { return end_with_message([] { return 7; }); }).status, 7);
}

TEST(EndWithMessage, DropsTheStackOfTorch) {
  const auto outcome = capture([] {
    return end_with_message([]() -> int {
      TORCH_CHECK(false, "sizes differ");
      return 0;
    });
  });
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.err, "colossal: [libtorch] sizes differ\n");
}

TEST(EndWithMessage, SuggestsARemedyForLackOfMemory) {
  const auto outcome = capture([] {
    return end_with_message([]() -> int {
      c10::GetCPUAllocator()->allocate(size_t{1} << 57);
      return 0;
    });
  });
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("[memory] out of memory; use a smaller model"));
}

TEST(Program, RunsFromAnyFolder) {
  std::FILE* pipe = ::popen(("cd / && " + test::program_path() + " trian 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  char line[256] = "";
  EXPECT_NE(std::fgets(line, sizeof(line), pipe), nullptr);
  const int status = ::pclose(pipe);
  EXPECT_THAT(line, MatchesRegex("colossal: unknown command `trian`, did you mean `train`.*\n"));
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

// The Python package gives this flag.
TEST(Cli, RefusesARewardFunctionThatIsNoSocket) {
  for (const char* number : {"1", "1000000"}) {
    const auto outcome = colossal({"train", "no.toml", concat("--reward-socket=", number)});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.err, concat("colossal: [reward] --reward-socket must be the number of an inherited socket: got ",
                                  number, "; call colossal.train of Python with a function as `reward`\n"));
  }
}

}  // namespace
}  // namespace colossal::cli::main_test
