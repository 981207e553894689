// `colossal schedule-lr` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/outcome.h"
#include "colossal/base/file.h"
#include "colossal/optim/learning_rate.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::cli::schedule_lr_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Outcome schedule_lr(const std::vector<std::string>& words) { return run_command("schedule-lr", words); }

TEST(ScheduleLr, DrawsTheConfigWithItsFlags) {
  const test::TemporaryFolder folder;
  write_file(folder / "run.toml",
             "[training]\nsteps = 40\n[optimizer]\nschedule = 'linear'\nwarmup_steps = 0\nfinal_learning_rate = 0.5\n");
  const auto outcome = schedule_lr({folder / "run.toml", "--optimizer.learning_rate=2", "--output", folder / "lr.svg",
                                    "--width", "51", "--height", "4"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  // The rate falls from almost 2 to 1, so it is in the upper two of four rows, each for half of the steps.
  EXPECT_THAT(outcome.out, StartsWith("linear: 40 steps, warm-up 0, peak 2\n\n"
                                      "    1.975 |" +
                                      std::string(20, '*') + std::string(20, ' ') +
                                      "\n"
                                      "          |" +
                                      std::string(20, ' ') + std::string(20, '*') + "\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\n           1                                     40\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\n        20  1.5\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\n        40  1\n"));
  const std::string picture = read_file(folder / "lr.svg", 1 << 20);
  EXPECT_THAT(picture, StartsWith("<svg xmlns="));
  EXPECT_THAT(picture, HasSubstr(">linear<"));
}

TEST(ScheduleLr, ComparesEverySchedule) {
  const test::TemporaryFolder folder;
  const auto outcome = schedule_lr({"--compare", "--output", folder / "all.svg"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string picture = read_file(folder / "all.svg", 1 << 20);
  const auto schedules = optim::learning_rate_schedules();
  for (const auto& [name, description] : schedules) {
    EXPECT_THAT(outcome.out, HasSubstr(std::string("  ") + name + ": ")) << name;
    EXPECT_THAT(picture, HasSubstr(">" + std::string(name) + "<")) << name;
  }
  size_t lines = 0;
  for (size_t at = picture.find("class='line'"); at != std::string::npos; at = picture.find("class='line'", at + 1))
    ++lines;
  EXPECT_EQ(lines, schedules.size());
  EXPECT_THAT(outcome.out, Not(HasSubstr("left out")));
}

TEST(ScheduleLr, ShortensAWarmUpThatExceedsTheSteps) {
  const auto outcome = schedule_lr({test::source_dir() + "/examples/vit_cifar10.toml", "--training.steps=30"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("30 steps, warm-up 3, "));
  EXPECT_EQ(outcome.err,
            "colossal: optimizer.warmup_steps = 100 is more than the 30 steps of this run: the warm-up is shortened to "
            "3; --optimizer.warmup_steps=3 silences this notice\n");
  EXPECT_THAT(schedule_lr({"--training.steps=30", "--optimizer.warmup_steps=31"}).err,
              HasSubstr("warmup_steps must not exceed training.steps: got 31 of 30"));
}

TEST(ScheduleLr, RefusesUnknownTables) {
  const auto outcome = schedule_lr({"--optimzer.schedule=linear"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("unknown key `optimzer.schedule`, did you mean `optimizer.schedule`?"));
}

TEST(ScheduleLr, SkipsInvalidSchedules) {
  const auto outcome = schedule_lr({"--compare", "--optimizer.warmup_steps=60"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      HasSubstr("left out: multi-step: schedule.milestones, fractions of training.steps, must be after the warm-up"));
  EXPECT_THAT(outcome.out, HasSubstr("  cosine: "));
}

TEST(ScheduleLr, ScalesWithTheBatch) {
  const auto outcome = schedule_lr({"--optimizer.learning_rate_scaling=linear", "--optimizer.reference_batch=4",
                                    "--optimizer.learning_rate=0.5", "--training.batch_size=16"});
  EXPECT_THAT(outcome.out, HasSubstr("peak 2 (0.5 for 4 samples, scaled to 16: linear)"));
}

TEST(ScheduleLr, RefusesWithOneLine) {
  const auto unknown = schedule_lr({"--optimizer.schedule=cosin"});
  EXPECT_EQ(unknown.status, 1);
  EXPECT_EQ(unknown.out, "");
  EXPECT_THAT(unknown.err, HasSubstr("did you mean `cosine`?"));
  const auto illegal = schedule_lr({"--optimizer.schedule.power=3"});
  EXPECT_EQ(illegal.err, "colossal: [optimizer] schedule cosine has no power: got 3.0; leave it out\n");
  EXPECT_EQ(schedule_lr({"--nonsense"}).status, 2);
}

}  // namespace
}  // namespace colossal::cli::schedule_lr_test
