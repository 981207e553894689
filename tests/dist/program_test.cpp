// `colossal`, which users start, and `colossal-torch`, the program with LibTorch that replaces it in the same process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "colossal/base/error.h"
#include "support/paths.h"
#include "support/process.h"

namespace colossal::test::program_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Returns the libraries that the dynamic linker would load for a program.
std::string libraries_of(const std::string& program) {
  const Finished listed = run_process({.command = {program}, .variables = {{"LD_TRACE_LOADED_OBJECTS", "1"}}});
  EXPECT_EQ(listed.status, 0) << listed.output;
  return listed.output;
}

TEST(Program, LoadsLibTorchOnlyIfNeeded) {
  EXPECT_THAT(libraries_of(program_path()), Not(HasSubstr("libtorch")));
  EXPECT_THAT(libraries_of(program_path() + "-torch"), HasSubstr("libtorch"));
}

TEST(Program, RunsCommandsWithoutLibTorchAlone) {
  const std::string alone = testing::TempDir() + "/program-alone/colossal";
  fs::create_directories(fs::path(alone).parent_path());
  fs::copy_file(program_path(), alone, fs::copy_options::overwrite_existing);
  const std::vector<std::vector<std::string>> answered{{"--version"},
                                                       {"help"},
                                                       {"help", "config"},
                                                       {"schedule", "--name", "1f1b"},
                                                       {"schedule-lr", "--training.steps=30"},
                                                       {"rollouts", "--help"}};
  for (const auto& words : answered) {
    std::vector<std::string> command{alone};
    command.insert(command.end(), words.begin(), words.end());
    const Finished finished = run_process({.command = command});
    EXPECT_EQ(finished.status, 0) << words[0] << ": " << finished.output;
  }
  const Finished finished = run_process({.command = {alone, "info", "--no-measure"}});
  EXPECT_EQ(finished.status, 1);
  EXPECT_THAT(finished.output, HasSubstr("[program] cannot start "));
  EXPECT_THAT(finished.output, HasSubstr("colossal-torch: No such file or directory"));
}

TEST(Program, ReportsThatItNeedsProc) {
  const std::string without_proc = "mount -t tmpfs none /proc";
  if (run_process({.command = {"unshare", "-m", "sh", "-c", without_proc}}).status != 0)
    GTEST_SKIP() << "nothing may be mounted here";
  const std::string program = program_path();
  const Finished finished = run_process(
      {.command = {"unshare", "-m", "sh", "-c", without_proc + " && exec " + program + " info --no-measure"}});
  EXPECT_EQ(finished.status, 1);
  EXPECT_THAT(
      finished.output,
      HasSubstr(
          "[program] cannot find the folder of this program: /proc/self/exe: No such file or directory; mount /proc"));
}

TEST(Program, PassesItsArgumentsOn) {
  const Finished info = run_process({.command = {program_path(), "info", "--no-measure"}});
  EXPECT_EQ(info.status, 0) << info.output;
  EXPECT_THAT(info.output, HasSubstr("libtorch  "));
  const Finished misused = run_process({.command = {program_path(), "info", "--no-such flag"}});
  EXPECT_EQ(misused.status, 2) << misused.output;
  EXPECT_THAT(misused.output, HasSubstr("--no-such flag"));
}

TEST(Program, LimitsSpinningOfWaitingThreadsUnlessOverridden) {
  using Variables = std::map<std::string, std::string>;
  const auto settings = [](Variables variables) {
    variables["OMP_DISPLAY_ENV"] = "verbose";
    return run_process({.command = {program_path(), "info", "--no-measure"}, .variables = variables}).output;
  };
  EXPECT_THAT(settings({{"OMP_WAIT_POLICY", ""}, {"GOMP_SPINCOUNT", ""}}), HasSubstr("GOMP_SPINCOUNT = '1000'"));
  EXPECT_THAT(settings({{"OMP_WAIT_POLICY", ""}, {"GOMP_SPINCOUNT", "7"}}), HasSubstr("GOMP_SPINCOUNT = '7'"));
  EXPECT_THAT(settings({{"OMP_WAIT_POLICY", "active"}, {"GOMP_SPINCOUNT", ""}}),
              Not(HasSubstr("GOMP_SPINCOUNT = '1000'")));
}

TEST(Program, GivesGpuStreamsSeparateQueuesUnlessOverridden) {
  const fs::path folder = fs::path(testing::TempDir()) / "program-with-another";
  fs::create_directories(folder);
  fs::copy_file(program_path(), folder / "colossal", fs::copy_options::overwrite_existing);
  std::ofstream(folder / "colossal-torch") << "#!/bin/sh\necho $CUDA_DEVICE_MAX_CONNECTIONS queues\n";
  fs::permissions(folder / "colossal-torch", fs::perms::owner_all);
  const auto answer = [&](const std::map<std::string, std::string>& variables) {
    return run_process({.command = {folder / "colossal", "info"}, .variables = variables}).output;
  };
  EXPECT_EQ(answer({{"CUDA_DEVICE_MAX_CONNECTIONS", ""}}), "32 queues\n");
  EXPECT_EQ(answer({{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}), "1 queues\n");
  fs::remove_all(folder);
}

TEST(Program, PutsTheHeapIntoHugePagesUnlessOverridden) {
  const fs::path folder = fs::path(testing::TempDir()) / "program-with-tunables";
  fs::create_directories(folder);
  fs::copy_file(program_path(), folder / "colossal", fs::copy_options::overwrite_existing);
  std::ofstream(folder / "colossal-torch") << "#!/bin/sh\necho \"<$GLIBC_TUNABLES>\"\n";
  fs::permissions(folder / "colossal-torch", fs::perms::owner_all);
  const auto answer = [&](const std::string& command, const std::map<std::string, std::string>& variables) {
    return run_process({.command = {folder / "colossal", command}, .variables = variables}).output;
  };
  const std::string other = "glibc.malloc.perturb=0";
  for (const char* command : {"chat", "generate", "serve"}) {
    EXPECT_EQ(answer(command, {{"GLIBC_TUNABLES", ""}}), "<glibc.malloc.hugetlb=1>\n") << command;
    EXPECT_EQ(answer(command, {{"GLIBC_TUNABLES", other}}), "<" + other + ">\n") << command;
  }
  EXPECT_EQ(answer("train", {{"GLIBC_TUNABLES", ""}}), "<>\n");
  fs::remove_all(folder);
}

TEST(Program, FailsIfItsOutputCannotBeWritten) {
  const std::string program = program_path();
  for (const std::string words : {" --version", " schedule --name 1f1b", " info --no-measure", " models"})
    for (const std::string output : {" >/dev/full", " >&-"}) {
      const Finished finished = run_process({.command = {"sh", "-c", program + words + output}});
      EXPECT_EQ(finished.status, 1) << words << output;
      EXPECT_THAT(finished.output, StartsWith("colossal: [output] standard output cannot be written: "))
          << words << output;
    }
}

TEST(Program, ReportsAFileSizeLimitAsAnError) {
  const fs::path file = fs::path(testing::TempDir()) / "program-limited.txt";
  std::ofstream(file) << std::string(100'000, 'x');
  const std::string command = concat("ulimit -f 1; ", program_path(), " tokenize --tokenizer bytes ", file.string(),
                                     " >", file.string(), ".ids");
  const Finished finished = run_process({.command = {"sh", "-c", command}});
  EXPECT_EQ(finished.status, 1);
  EXPECT_EQ(finished.output, "colossal: [output] standard output cannot be written: File too large\n");
}

}  // namespace
}  // namespace colossal::test::program_test
