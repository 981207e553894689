// `colossal train` on a disk that fails in the middle of the run. The run ends with a message that names the folder
// and the remedy, or continues if it can, and the last checkpoint is complete.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "colossal/base/error.h"
#include "dist/train_program.h"
#include "support/paths.h"

namespace colossal::test::train_disk_test {
namespace {

using testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMayLoadInFront = false;  // sanitizers must be loaded first
#else
constexpr bool kMayLoadInFront = true;
#endif

/// Returns the number that ends at the start of `words`.
int64_t number_before(const std::string& words, const std::string& text) {
  const size_t end = text.rfind(words);
  if (end == std::string::npos) return 0;
  return std::atoll(text.c_str() + text.find_last_not_of("0123456789", end - 1) + 1);
}

class TrainDisk : public TrainProgram {
 protected:
  void SetUp() override {
    TrainProgram::SetUp();
    write_config(6, 2);
  }
  std::string scratch() const { return base + "/scratch"; }
  /// Uses chunks so small that most of the model data is on the disk.
  Words train_in_tiers(const Words& more) const {
    Words flags{"--memory.host=192KiB", "--memory.disk=" + scratch(), "--parallel.chunk_mib=0.02"};
    flags.insert(flags.end(), more.begin(), more.end());
    return train(flags);
  }
  Finished run_on_faulty_disk(const std::string& fault, const Words& how) const {
    return run_process({.command = train_in_tiers(how),
                        .variables = {{"LD_PRELOAD", faulty_disk()}, {"COLOSSAL_FAULTY_DISK", fault}},
                        .limit = seconds(120)});
  }
};

TEST_F(TrainDisk, EndsTheRunWithFolderAndRemedyAndKeepsTheLastCheckpoint) {
  const Finished whole =
      kMayLoadInFront ? run_on_faulty_disk("count", {"--overwrite"}) : run(train_in_tiers({"--overwrite"}));
  ASSERT_EQ(whole.status, 0) << whole.output;
  const std::vector<double> want = losses();
  ASSERT_EQ(want.size(), 6u);

  // The file in the folder has no name, so the run continues without the folder.
  bool is_gone = false;
  const auto remove_scratch = [&](const std::string& output, int) {
    if (is_gone || !has_stepped(output)) return;
    is_gone = true;
    std::filesystem::remove_all(scratch());
  };
  const Finished robbed =
      run_process({.command = train_in_tiers({"--overwrite"}), .limit = seconds(120), .meanwhile = remove_scratch});
  EXPECT_EQ(robbed.status, 0) << robbed.output;
  EXPECT_TRUE(is_gone);
  EXPECT_FALSE(std::filesystem::exists(scratch()));
  EXPECT_EQ(losses(), want);
  expect_all_is_saved();
  if (!kMayLoadInFront) GTEST_SKIP() << "this program is sanitized";

  // This is well after the checkpoint of step 2, and well before the end.
  const int64_t reads = number_before(" reads, ", whole.output) * 3 / 5,
                writes = number_before(" writes\n", whole.output) * 3 / 5;
  ASSERT_GT(reads, 20);
  ASSERT_GT(writes, 20);
  struct Case {
    std::string fault;
    const char* said;
  };
  for (const Case& each :
       {Case{concat("write ", writes), "Input/output error"}, Case{concat("read ", reads), "Input/output error"},
        Case{concat("short ", reads), "Input/output error"}, Case{concat("corrupt ", reads), "by their checksums"}}) {
    SCOPED_TRACE(each.fault);
    const Finished ended = run_on_faulty_disk(each.fault, {"--overwrite"});
    EXPECT_EQ(ended.status, 1) << ended.output;
    EXPECT_TRUE(has_stepped(ended.output)) << "it fails too early: " << ended.output;
    for (const std::string& part :
         {std::string("[disk]"), scratch(), std::string("memory.disk"), std::string(each.said)})
      EXPECT_THAT(ended.output, HasSubstr(part));
    const auto done = static_cast<int64_t>(losses().size());
    EXPECT_LT(done, 6);
    const auto steps = checkpoint::complete_steps(base + "/run/checkpoints");
    ASSERT_FALSE(steps.empty()) << ended.output;
    EXPECT_GE(steps.back() + 2, done) << "one every two steps";
  }
  // A working disk resumes from the last checkpoint, even after an attempt on a full disk.
  const Finished refused = run_on_faulty_disk("full 100000", {"--resume"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.output, HasSubstr("[disk] the scratch file in " + scratch()));
  EXPECT_THAT(refused.output, HasSubstr("free space on that disk, or name a folder on another disk in memory.disk"));
  const Finished resumed = run(train({"--resume"}));
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_EQ(losses(), want);
}

TEST_F(TrainDisk, ReportsNoSpaceForTheCheckpointOfAStoppedRun) {
  if (!kMayLoadInFront) GTEST_SKIP() << "this program is sanitized";
  write_config(100000, 2);
  const std::string full = base + "/full", checkpoints = base + "/run/checkpoints";
  bool sent = false;
  const Finished ended =
      run_process({.command = train_in_tiers({"--overwrite"}),
                   .variables = {{"LD_PRELOAD", faulty_disk()}, {"COLOSSAL_FAULTY_DISK", "room " + full}},
                   .limit = seconds(120),
                   .meanwhile = [&](const std::string&, int process) {
                     if (sent || checkpoint::complete_steps(checkpoints).empty()) return;
                     sent = true;
                     std::ofstream(full) << "full";
                     kill(process, SIGTERM);
                   }});
  EXPECT_TRUE(sent);
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr(checkpoints));
  EXPECT_THAT(ended.output, HasSubstr("No space left on device"));
  const std::vector<int64_t> steps = checkpoint::complete_steps(checkpoints);
  ASSERT_FALSE(steps.empty());
  EXPECT_LT(steps.back(), static_cast<int64_t>(losses().size())) << "what was done behind it is not saved";
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints))
    EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
  const Finished resumed = run(train({"--resume", concat("--training.steps=", steps.back() + 1)}));
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("resumed from"));
}

}  // namespace
}  // namespace colossal::test::train_disk_test
