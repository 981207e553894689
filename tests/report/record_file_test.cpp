// Records that a full disk refuses are written later, complete.
#include "colossal/report/record_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <functional>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/temporary_folder.h"

namespace colossal::report::record_file_test {
namespace {

/// Runs `work` while files of this process are limited to `bytes` bytes, as on a full disk.
void with_largest_file(rlim_t bytes, const std::function<void()>& work) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = bytes;
  setrlimit(RLIMIT_FSIZE, &small);
  work();
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
}

TEST(RecordFile, WritesWholeRecordsLaterAfterAFullDisk) {
  const test::TemporaryFolder folder;
  RecordFile file(folder / "f", "test", true);
  file.add("first\n");
  file.flush();
  with_largest_file(10, [&] {
    file.add("second\n");
    EXPECT_THROW(file.flush(), Error);
    file.add("third\n");
    EXPECT_THROW(file.flush(), Error);
    EXPECT_EQ(read_file(folder / "f", 100), "first\n") << "half a record";
  });
  file.add("fourth\n");
  file.flush();
  EXPECT_EQ(read_file(folder / "f", 100), "first\nsecond\nthird\nfourth\n");
}

TEST(RecordFile, RetriesOnDestruction) {
  const test::TemporaryFolder folder;
  {
    RecordFile file(folder / "f", "test", true);
    with_largest_file(0, [&] {
      file.add("late\n");
      EXPECT_THROW(file.flush(), Error);
    });
  }
  EXPECT_EQ(read_file(folder / "f", 100), "late\n");
}

TEST(RecordFile, ReportsLostRecords) {
  const test::TemporaryFolder folder;
  RecordFile file(folder / "f", "test", true);
  file.add(std::string(RecordFile::kMaxPendingBytes, 'x'));
  file.add("one");
  file.add("two");
  std::string message;
  try {
    file.flush();
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_THAT(message, testing::HasSubstr("2 records are lost"));
  EXPECT_EQ(std::filesystem::file_size(folder / "f"), RecordFile::kMaxPendingBytes);
  file.add("three");
  file.flush();
  EXPECT_EQ(std::filesystem::file_size(folder / "f"), RecordFile::kMaxPendingBytes + 5);
}

TEST(RecordFile, RefusesUnopenablePaths) { EXPECT_THROW(RecordFile("/nonexistent/f", "test", true), Error); }

}  // namespace
}  // namespace colossal::report::record_file_test
