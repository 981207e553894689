// `colossal schedule` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/outcome.h"
#include "colossal/base/file.h"
#include "colossal/schedule/make.h"
#include "support/temporary_folder.h"

namespace colossal::cli::schedule_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Outcome schedule(const std::vector<std::string>& words) { return run_command("schedule", words); }

TEST(Schedule, DrawsAScheduleWithItsCosts) {
  const test::TemporaryFolder folder;
  const auto outcome = schedule({"--name", "zero-bubble-h1", "--stages", "4", "--micro-batches", "8", "--svg",
                                 folder / "h1.svg", "--trace", folder / "h1.json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("zero-bubble-h1: 4 ranks, 8 micro-batches; forward 1, backward 1 + 1, transfer "
                                      "0, 1 chunk per rank\n\nrank 0 F0"));
  EXPECT_THAT(outcome.out, HasSubstr("\nmakespan 27, bubble 12.5 % of ideal compute, 48 messages\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("\n   3 +24 +0 +2.5\n"));
  EXPECT_THAT(read_file(folder / "h1.svg", 1 << 20), HasSubstr("W7 on rank 3"));
  EXPECT_THAT(read_file(folder / "h1.json", 1 << 20), HasSubstr("\"traceEvents\""));
}

TEST(Schedule, AppliesCosts) {
  const auto outcome =
      schedule({"--name", "zero-bubble-v", "--stages", "4", "--micro-batches", "8", "--costs", "1,1,1,0.05"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("transfer 0.05, 2 chunks per rank"));
  EXPECT_THAT(schedule({"--name", "1f1b", "--costs", "1,2"}).err, HasSubstr("--costs"));
}

TEST(Schedule, ComparesAllLegalSchedules) {
  const test::TemporaryFolder folder;
  const auto outcome = schedule({"--compare", "--stages", "3", "--micro-batches", "6", "--svg", folder / "all.svg"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string picture = read_file(folder / "all.svg", 1 << 20);
  size_t row = 0;
  for (const char* name : {"zero-bubble-h2", "zero-bubble-v", "zero-bubble-h1", "v-half", "gpipe"}) {
    const size_t found = outcome.out.find("\n" + std::string(name) + " ");
    ASSERT_NE(found, std::string::npos) << name;
    EXPECT_GT(found, row) << name << " is longer than the one before";
    row = found;
  }
  for (const auto& family : colossal::schedule::families()) {
    const std::string name = family.name;
    EXPECT_EQ(picture.find(">" + name + "<") != std::string::npos, name != "chimera") << name;
  }
  EXPECT_THAT(outcome.out, HasSubstr("left out: chimera needs an even number of ranks: got 3; nearest 2 or 4\n"));
}

TEST(Schedule, RefusesWithOneLine) {
  const auto illegal = schedule({"--name", "interleaved", "--stages", "4", "--micro-batches", "6"});
  EXPECT_EQ(illegal.status, 1);
  EXPECT_EQ(illegal.out, "");
  EXPECT_EQ(illegal.err,
            "colossal: [pipeline] interleaved needs micro_batches divisible by the 4 ranks: got 6; nearest 4 or 8\n");
  const auto nothing = schedule({});
  EXPECT_EQ(nothing.status, 2);
  EXPECT_THAT(nothing.err, HasSubstr("give either --name NAME or --compare; the names are gpipe, 1f1b"));
  EXPECT_EQ(schedule({"--name", "1f1b", "--compare"}).status, 2);
}

}  // namespace
}  // namespace colossal::cli::schedule_test
