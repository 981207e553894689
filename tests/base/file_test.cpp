#include "colossal/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/temporary_folder.h"
#include "colossal/base/error.h"
#include "colossal/base/run_folder.h"

namespace colossal {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
constexpr int64_t kPlenty = 1 << 20;

size_t entries(const std::string& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

template <class Work>
std::string complaint(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no complaint";
}

TEST(AtomicFile, IsInvisibleUntilCommitted) {
  const testing::TemporaryFolder folder;
  write_file(folder / "x", "old");
  AtomicFile file(folder / "x");
  file.write("new ");
  file.write("content");
  EXPECT_EQ(read_file(folder / "x", kPlenty), "old");
  EXPECT_EQ(file.written(), 11);
  file.commit();
  EXPECT_EQ(read_file(folder / "x", kPlenty), "new content");
  EXPECT_EQ(entries(folder.path()), 1u) << "the aside file is left behind";
  EXPECT_THROW(file.write("more"), Error);
  EXPECT_THROW(file.commit(), Error);
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const testing::TemporaryFolder folder;
  write_file(folder / "x", "old");
  { AtomicFile(folder / "x").write("new"); }
  EXPECT_EQ(read_file(folder / "x", kPlenty), "old");
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(AtomicFile, TwoWritersDoNotMeet) {
  const testing::TemporaryFolder folder;
  AtomicFile one(folder / "x"), two(folder / "x");
  one.write("one");
  two.write("two");
  one.commit();
  two.commit();
  EXPECT_EQ(read_file(folder / "x", kPlenty), "two");
}

TEST(AtomicFile, AFullDiskLeavesTheOldFile) {
  const testing::TemporaryFolder folder;
  write_file(folder / "x", "old");
  // A limit on the size of files fails the write as a full disk does (EFBIG for ENOSPC); in a child, since it binds the process.
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = complaint([&] { write_file(folder / "x", std::string(100'000, 'n')); });
    const bool good = message.find("[file] cannot write " + (folder / "x")) == 0 &&
                      message.find("an earlier file of that name is unchanged") != std::string::npos;
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(read_file(folder / "x", kPlenty), "old");
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(AtomicFile, ADeviceWithoutSpaceSaysSo) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  // The aside file is made beside the name it will take; a link of its name to /dev/full is not possible (O_EXCL), so the words
  // for ENOSPC are read from a full file system where one can be mounted, else this shows that creation fails cleanly.
  EXPECT_THAT(complaint([] { write_file("/dev/null/x", "bytes"); }), HasSubstr("[file] cannot create /dev/null/x: Not a directory"));
}

TEST(AtomicFile, KilledWhileWritingLeavesTheOldFile) {
  const testing::TemporaryFolder folder;
  write_file(folder / "x", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder / "x");
    file.write("half");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_file(folder / "x", kPlenty), "old");
}

TEST(AtomicFile, NamesPathAndReason) {
  EXPECT_THAT(complaint([] { AtomicFile("/nonexistent/x"); }),
              HasSubstr("[file] cannot create /nonexistent/x: No such file or directory; its folder does not exist"));
  const testing::TemporaryFolder folder;
  fs::create_directory(folder / "x");
  EXPECT_THAT(complaint([&] { write_file(folder / "x", "a"); }), HasSubstr("[file] cannot rename to " + (folder / "x")));
  EXPECT_EQ(entries(folder.path()), 1u) << "the aside file is left behind";
}

TEST(ReadFile, ReadsWholeFilesWithinABound) {
  const testing::TemporaryFolder folder;
  const std::string bytes(200'000, 'b');
  write_file(folder / "x", bytes);
  EXPECT_EQ(read_file(folder / "x", 200'000), bytes);
  EXPECT_THAT(complaint([&] { read_file(folder / "x", 199'999); }), HasSubstr("is too large: 200000 bytes, at most 199999"));
  EXPECT_THAT(complaint([&] { read_file("/dev/zero", 1000); }), HasSubstr("is too large"));
  EXPECT_THAT(complaint([&] { read_file(folder.path(), 1000); }), HasSubstr("is a folder, a file is wanted"));
  EXPECT_THAT(complaint([&] { read_file(folder / "y", 1000); }), HasSubstr("cannot open"));
}

TEST(RunFolder, CreatesItsFoldersAndNamesItsFiles) {
  const testing::TemporaryFolder folder;
  const RunFolder run(folder / "deep/run");
  EXPECT_FALSE(fs::exists(run.path())) << "names alone must not touch the disk";
  run.create();
  run.create();
  EXPECT_TRUE(fs::is_directory(run.checkpoints()));
  EXPECT_TRUE(fs::is_directory(run.tensorboard()));
  EXPECT_EQ(run.config(), run.path() + "/config.toml");
  EXPECT_EQ(run.metrics(), run.path() + "/metrics.jsonl");
  EXPECT_EQ(run.report(), run.path() + "/report.html");
  EXPECT_EQ(run.log(3), run.path() + "/log-rank-3.txt");
}

TEST(RunFolder, AFileInTheWayIsAnError) {
  const testing::TemporaryFolder folder;
  write_file(folder / "run", "");
  EXPECT_THAT(complaint([&] { RunFolder(folder / "run").create(); }), HasSubstr("[file] cannot create the folder"));
  EXPECT_THAT(complaint([&] { RunFolder("").create(); }), HasSubstr("run.folder must not be empty"));
}

}  // namespace
}  // namespace colossal
