#include "colossal/base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace colossal::progress_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A stream in memory and a clock that the test advances.
class ProgressTest : public ::testing::Test {
 protected:
  ~ProgressTest() override { std::fclose(stream_); }
  std::string output() {
    std::fflush(stream_);
    std::rewind(stream_);
    std::string text;
    for (int c = 0; (c = std::fgetc(stream_)) != EOF;) text += static_cast<char>(c);
    return text;
  }
  std::vector<std::string> lines() {
    std::vector<std::string> all;
    std::string text = output();
    for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      all.push_back(text.substr(begin, end - begin));
    }
    return all;
  }
  Progress make(int64_t total, ProgressStyle style) {
    return Progress("step", total, stream_, style, [this] { return now_; });
  }
  std::FILE* stream_ = std::tmpfile();
  double now_ = 100;
};

TEST_F(ProgressTest, WritesPlainLinesToAFile) {
  {
    Progress progress = make(2, ProgressStyle::kAuto);
    progress.update(1, "loss 3");
    progress.update(2, "loss 2");
  }
  EXPECT_THAT(lines(), ElementsAre("step 1/2  loss 3", "step 2/2  loss 2"));
}

TEST_F(ProgressTest, PrintsALinePerTwentiethOfALongRun) {
  Progress progress = make(10'000, ProgressStyle::kLines);
  for (int i = 1; i <= 10'000; ++i) progress.update(i, "x");
  const auto all = lines();
  EXPECT_EQ(all.size(), 21u);  // the first step, every 500th step after it, and the last step
  EXPECT_THAT(all.back(), HasSubstr("10000/10000"));
}

TEST_F(ProgressTest, PrintsALineEveryTenSecondsOfASlowRun) {
  Progress progress = make(1'000'000, ProgressStyle::kLines);
  progress.update(1, "x");
  now_ += 9;
  progress.update(2, "x");
  now_ += 2;
  progress.update(3, "x");
  EXPECT_EQ(lines().size(), 2u);
}

TEST_F(ProgressTest, PrintsTheLastState) {
  {
    Progress progress = make(1000, ProgressStyle::kLines);
    progress.update(1, "first");
    progress.update(2, "last words");
  }
  EXPECT_THAT(lines().back(), HasSubstr("2/1000  last words"));
}

TEST_F(ProgressTest, PrintsTheTimeLeft) {
  Progress progress = make(11, ProgressStyle::kLines);
  progress.update(1, "x");
  now_ += 60;
  progress.update(6, "x");  // 6 of 11 steps after 60 seconds
  EXPECT_THAT(lines().back(), HasSubstr("50s left"));
}

TEST_F(ProgressTest, KeepsOneLineOnATerminal) {
  {
    Progress progress = make(4, ProgressStyle::kTerminal);
    for (int i = 1; i <= 4; ++i) {
      now_ += 1;
      progress.update(i, "loss");
    }
    progress.line("saved");
  }
  const auto all = lines();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(all[0], HasSubstr("\r\x1b[Ksaved"));
  EXPECT_THAT(all[1], HasSubstr("[====================] 4/4  loss"));
  EXPECT_THAT(all[0], HasSubstr("[=====               ] 1/4  loss"));
}

TEST_F(ProgressTest, RedrawsATerminalAtMostTenTimesASecond) {
  Progress progress = make(1000, ProgressStyle::kTerminal);
  for (int i = 1; i <= 100; ++i) {
    now_ += 0.01;
    progress.update(i, "x");
  }
  const std::string text = output();
  EXPECT_LE(std::count(text.begin(), text.end(), '\r') / 2, 12);
}

TEST_F(ProgressTest, CountsWithoutATotal) {
  Progress progress = make(0, ProgressStyle::kLines);
  progress.update(5, "files");
  EXPECT_THAT(lines(), ElementsAre("step 5  files"));
}

TEST_F(ProgressTest, WritesNothingIfSilent) {
  {
    Progress progress = make(2, ProgressStyle::kSilent);
    progress.update(1, "x");
    progress.line("y");
  }
  EXPECT_EQ(output(), "");
}

TEST(Duration, PrintsDurationsForPeople) {
  EXPECT_EQ(readable_duration(0.4), "0s");
  EXPECT_EQ(readable_duration(59.6), "1m 00s");
  EXPECT_EQ(readable_duration(200), "3m 20s");
  EXPECT_EQ(readable_duration(3725), "1h 02m");
  EXPECT_EQ(readable_duration(-1), "?");
  EXPECT_EQ(readable_duration(1e300 * 1e300), "?");
}

}  // namespace
}  // namespace colossal::progress_test
