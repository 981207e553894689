// `colossal run -n N -- PROGRAM ...`: any program as the ranks of one run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "dist/probe_process.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::test::run_program_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Process run_of(const std::vector<std::string>& words, std::map<std::string, std::string> variables = {}) {
  Process process{.command = {program_path(), "run"}, .variables = clean(std::move(variables))};
  process.command.insert(process.command.end(), words.begin(), words.end());
  return process;
}

Finished finished(const std::vector<std::string>& words, std::map<std::string, std::string> variables = {}) {
  return run_process(run_of(words, std::move(variables)));
}

TEST(RunProgram, StartsItAsRanks) {
  const Finished result = finished(
      {"-n", "2", "--", "sh", "-c", "echo rank $COLOSSAL_RANK of $COLOSSAL_SIZE \"$@\"", "sh", "a b", "--", "-n"});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("rank 0 of 2 a b -- -n\n"), HasSubstr("rank 1 of 2 a b -- -n\n")));
}

TEST(RunProgram, JoinsTheRanksInOneWorld) {
  const Finished result = finished({"--ranks", "2", "--", comm_probe(), "conform", "shm"});
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("rank 0 of 2 ok on shm"), HasSubstr("rank 1 of 2 ok on shm")));
}

TEST(RunProgram, SetsWhatLibrariesReadAtTheirStart) {
  const std::vector<std::string> words{"-n", "1",  "--",
                                       "sh", "-c", "echo $GOMP_SPINCOUNT and $CUDA_DEVICE_MAX_CONNECTIONS"};
  EXPECT_EQ(
      finished(words, {{"GOMP_SPINCOUNT", ""}, {"OMP_WAIT_POLICY", ""}, {"CUDA_DEVICE_MAX_CONNECTIONS", ""}}).output,
      "1000 and 32\n");
  EXPECT_EQ(finished(words, {{"GOMP_SPINCOUNT", "7"}, {"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}).output, "7 and 1\n");
}

TEST(RunProgram, ReturnsTheStatusOfAFailedRank) {
  const Finished result = finished({"-n", "2", "--", "sh", "-c", "test $COLOSSAL_RANK = 0 && exec sleep 60; exit 7"});
  EXPECT_EQ(result.status, 7) << result.output;
  EXPECT_FALSE(result.late);
  EXPECT_THAT(result.output, AllOf(HasSubstr("colossal: rank 1 of 2 (process "),
                                   HasSubstr(") ended with status 7; ending the other ranks")));
}

// Rank 0 ends by itself as soon as the launcher knows that rank 1 has failed.
TEST(RunProgram, NamesAFailedRankIfTheOthersEndByThemselves) {
  const test::TemporaryFolder folder;
  const Finished result =
      finished({"-n", "2", "--", "sh", "-c",
                "if [ $COLOSSAL_RANK = 1 ]; then echo $$ > $FAILED.new; mv $FAILED.new $FAILED; exit 7; fi; "
                "until [ -e $FAILED ]; do sleep 0.01; done; while kill -0 $(cat $FAILED) 2> /dev/null; do :; done"},
               {{"FAILED", folder / "failed"}});
  EXPECT_EQ(result.status, 7) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("colossal: rank 1 of 2 (process "), HasSubstr(") ended with status 7")));
}

TEST(RunProgram, PassesSignalsOn) {
  Process process = run_of({"-n", "2", "--", comm_probe(), "ask", "shm"});
  bool has_asked = false;
  process.meanwhile = [&](const std::string& output, int launcher) {
    if (has_asked || count(output, " runs as ") != 2) return;
    has_asked = true;
    kill(launcher, SIGTERM);
  };
  const Finished result = run_process(process);
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.output;
  EXPECT_THAT(result.output, HasSubstr("rank 0 has saved"));
}

TEST(RunProgram, NamesAProgramThatCannotStart) {
  const Finished missing = finished({"-n", "2", "--", "no-such-program", "x"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_EQ(missing.output,
            "colossal: [launch] cannot start rank 0 as no-such-program: No such file or directory; give the name of a "
            "program in PATH, or the path of an executable file\n");
  const Finished folder = finished({"-n", "2", "--", "/tmp"});
  EXPECT_EQ(folder.status, 1);
  EXPECT_THAT(folder.output, HasSubstr("[launch] cannot start rank 0 as /tmp: Permission denied; "));
}

TEST(RunProgram, NeedsAProgramOrACommand) {
  for (const auto& words : std::vector<std::vector<std::string>>{{"-n", "2"}, {"-n", "2", "--"}}) {
    const Finished result = finished(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.output, HasSubstr("usage: colossal run -n N COMMAND ARGUMENTS..., or colossal run -n N -- "));
  }
}

TEST(RunProgram, RefusesAProgramWithoutTheMarker) {
  const Finished program = finished({"-n", "2", "python", "train.py"});
  EXPECT_EQ(program.status, 2);
  EXPECT_EQ(program.output,
            "colossal run: unknown command `python`; write `colossal run -n 2 -- python ...` to start a program\n");
  EXPECT_THAT(finished({"-n", "2", "trian", "x.toml"}).output,
              HasSubstr("unknown command `trian`, did you mean `train`?; write "));
}

TEST(RunProgram, LeavesCommandsOfColossalAsTheyAre) {
  const Finished help = finished({"-n", "1", "help", "run"});
  EXPECT_EQ(help.status, 0) << help.output;
  EXPECT_THAT(help.output, HasSubstr("Starts N ranks of one run on this host"));
  const Finished marked = finished({"-n", "1", "models", "--", "x"});
  EXPECT_EQ(marked.status, 2) << "`--` is an argument of `models`: " << marked.output;
}

}  // namespace
}  // namespace colossal::test::run_program_test
