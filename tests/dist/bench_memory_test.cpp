// `colossal bench memory` through the program, on models of a few thousand parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist/train_program.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::test::bench_memory_test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

Finished bench_memory(const TemporaryFolder& folder, const Words& more) {
  Words words{program_path(),
              "bench",
              "memory",
              "--memory.disk=" + folder.path(),
              "--memory.host=160KiB",
              "--model.hidden=32",
              "--parallel.chunk_mib=0.02",
              "--data.sequence=16",
              "--model.name=gpt2-tiny"};
  words.insert(words.end(), more.begin(), more.end());
  return run(words);
}

TEST(BenchMemory, PrintsARowPerTryAndTheLargestWithAndWithoutTiers) {
  const TemporaryFolder folder;
  const Finished done =
      bench_memory(folder, {"--from=2", "--tries=1", "--steps=2", "--baseline", "--draw=" + (folder / "step.svg")});
  ASSERT_EQ(done.status, 0) << done.output;
  // hidden 32, 257 tokens, 256 positions: 16,480 parameters, and 12,704 per layer. They do not all fit into 160 KiB.
  EXPECT_THAT(done.output, ContainsRegex("\n     2 +41888 .* KiB +[1-9][0-9.]* KiB +[1-9].*KiB\n"));
  EXPECT_THAT(done.output, HasSubstr("the search ended at the limit"));
  EXPECT_THAT(done.output, HasSubstr("largest: 41888 parameters"));
  EXPECT_THAT(done.output, HasSubstr("largest without [memory]: 41888 parameters, 1.00 times as many with it"));
  const std::string picture = read_all(folder / "step.svg");
  EXPECT_THAT(picture, HasSubstr("auto: "));
  EXPECT_THAT(picture, HasSubstr("lru: "));
  EXPECT_THAT(picture, HasSubstr("class='read'"));
}

TEST(BenchMemory, ShowsTheDevice) {
  const TemporaryFolder folder;
  const Finished done =
      bench_memory(folder, {"--from=2", "--tries=1", "--memory.device=64MiB", "--memory.placement=static"});
  ASSERT_EQ(done.status, 0) << done.output;
  EXPECT_THAT(done.output, ContainsRegex("resident +device +copied +host +disk"));
  EXPECT_THAT(done.output,
              ContainsRegex("\n     2 +41888 +[0-9.]+ +[0-9.]+ MiB +[1-9][0-9.]* [KM]iB +[1-9][0-9.]* KiB "));
}

TEST(BenchMemory, ReportsWhyNoSizeWorks) {
  const TemporaryFolder folder;
  const Finished small = bench_memory(folder, {"--limit=1MiB"});
  EXPECT_EQ(small.status, 1);
  EXPECT_THAT(small.output, HasSubstr("not even the smallest model trains: more than 1.0 MiB resident"));
  const Finished refused = bench_memory(folder, {"--memory.host=4KiB"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.output, ContainsRegex("not even the smallest model trains: .*the smallest that works is"));
  EXPECT_THAT(refused.output, Not(HasSubstr("terminate")));
  const Finished senseless = run({program_path(), "bench", "memory"});
  EXPECT_EQ(senseless.status, 2);
  EXPECT_THAT(senseless.output, HasSubstr("bench memory needs budgets, such as --memory.host=2GiB"));
}

}  // namespace
}  // namespace colossal::test::bench_memory_test
