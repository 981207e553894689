#include "colossal/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "colossal/base/file.h"
#include "support/temporary_folder.h"

namespace colossal::log_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
constexpr int64_t kPlenty = 1 << 20;

TEST(Log, WritesEveryLevelWithTheRankToTheFile) {
  const test::TemporaryFolder folder;
  const Log log({.rank = 1, .size = 2, .screen = LogLevel::kSilent, .file = folder / "log.txt"});
  log.debug("a ", 1);
  log.info("b {} %s");  // messages are not format strings
  log.warning("c");
  log.error("d");
  // The log is still open: every line is flushed at once.
  const std::string text = read_file(folder / "log.txt", kPlenty);
  EXPECT_THAT(text, HasSubstr(" debug  rank 1  a 1\n"));
  EXPECT_THAT(text, HasSubstr(" info  rank 1  b {} %s\n"));
  EXPECT_THAT(text, HasSubstr(" warning  rank 1  c\n"));
  EXPECT_THAT(text, HasSubstr(" error  rank 1  d\n"));
}

TEST(Log, ShowsTheRequestedLevelOnTheScreen) {
  ::testing::internal::CaptureStderr();
  Log({.rank = 0, .size = 1}).debug("hidden");
  Log({.rank = 0, .size = 1}).info("shown");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("shown\n"));
  EXPECT_THAT(text, Not(HasSubstr("hidden")));
  EXPECT_THAT(text, Not(HasSubstr("rank")));
}

TEST(Log, ShowsOnlyWarningsOfOtherRanks) {
  ::testing::internal::CaptureStderr();
  const Log log({.rank = 3, .size = 4});
  log.info("hidden");
  log.warning("shown");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("rank 3  shown\n"));
  EXPECT_THAT(text, Not(HasSubstr("hidden")));
}

TEST(Log, WritesNothingIfSilent) {
  ::testing::internal::CaptureStderr();
  Log::silent().error("nothing");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Log, RefusesAFileThatCannotBeOpened) {
  EXPECT_THROW(Log({.screen = LogLevel::kSilent, .file = "/proc/nonexistent/log.txt"}), Error);
}

TEST(Log, KeepsLinesOfSeveralThreadsWhole) {
  const test::TemporaryFolder folder;
  const Log log({.screen = LogLevel::kSilent, .file = folder / "log.txt"});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log] {
      for (int i = 0; i < 200; ++i) log.info("0123456789");
    });
  }
  for (auto& thread : threads) thread.join();
  const std::string text = read_file(folder / "log.txt", kPlenty);
  size_t whole = 0;
  for (size_t at = 0; (at = text.find(" info  0123456789\n", at)) != std::string::npos; ++at) ++whole;
  EXPECT_EQ(whole, 800u);
}

}  // namespace
}  // namespace colossal::log_test
