#include "colossal/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/run_folder.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::file_test {
namespace {

namespace fs = std::filesystem;
using test::thrown_message;
using ::testing::HasSubstr;
constexpr int64_t kPlenty = 1 << 20;

size_t entries(const std::string& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(AtomicFile, AppearsOnCommit) {
  const test::TemporaryFolder folder;
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

TEST(AtomicFile, LeavesNoFileWithoutCommit) {
  const test::TemporaryFolder folder;
  write_file(folder / "x", "old");
  {
    AtomicFile(folder / "x").write("new");
  }
  EXPECT_EQ(read_file(folder / "x", kPlenty), "old");
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(AtomicFile, SeparatesTwoWriters) {
  const test::TemporaryFolder folder;
  AtomicFile one(folder / "x"), two(folder / "x");
  one.write("one");
  two.write("two");
  one.commit();
  two.commit();
  EXPECT_EQ(read_file(folder / "x", kPlenty), "two");
}

/// Runs `work` in a child process, whose exit status is its result. Returns the exit status, or -1 if a signal ended
/// the child.
template <class Work>
int in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(AtomicFile, KeepsTheOldFileOnAFullDisk) {
  constexpr int kGood = 0, kBad = 1, kNotAllowed = 2;
  const test::TemporaryFolder folder;
  const std::string path = folder / "x";
  const int result = in_child([&] {  // mounts a disk of 64 KiB that only this child sees
    const bool mounted = (::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
                         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64k") == 0;
    if (!mounted) return kNotAllowed;
    write_file(path, "old");
    const std::string message = thrown_message([&] { write_file(path, std::string(1'000'000, 'n')); });
    const std::string wanted = "[file] cannot write " + path +
                               ": No space left on device; free some space; an earlier file of that name is unchanged";
    return message == wanted && read_file(path, kPlenty) == "old" && entries(folder.path()) == 1 ? kGood : kBad;
  });
  if (result == kNotAllowed) GTEST_SKIP() << "may not mount a file system here";
  EXPECT_EQ(result, kGood);
}

TEST(AtomicFile, KeepsTheOldFileAtASizeLimit) {
  const test::TemporaryFolder folder;
  write_file(folder / "x", "old");
  const int result = in_child([&] {  // a child, because the limit applies to a whole process
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = thrown_message([&] { write_file(folder / "x", std::string(100'000, 'n')); });
    return message.find("[file] cannot write " + (folder / "x") + ": File too large") == 0 ? 0 : 1;
  });
  EXPECT_EQ(result, 0);
  EXPECT_EQ(read_file(folder / "x", kPlenty), "old");
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(AtomicFile, KeepsTheOldFileWhenTheWriterIsKilled) {
  const test::TemporaryFolder folder;
  write_file(folder / "x", "old");
  const int result = in_child([&] {
    AtomicFile file(folder / "x");
    file.write("half");
    return ::raise(SIGKILL);
  });
  ASSERT_EQ(result, -1);
  EXPECT_EQ(read_file(folder / "x", kPlenty), "old");
  EXPECT_EQ(entries(folder.path()), 2u);
  write_file(folder / "y", "of another name");
  EXPECT_EQ(entries(folder.path()), 3u) << "only what was left of the same file may be removed";
  write_file(folder / "x", "new");
  EXPECT_EQ(entries(folder.path()), 2u) << "what the killed process left stays for ever";
}

TEST(AtomicFile, IgnoresFilesOfOtherWriters) {
  const test::TemporaryFolder folder;
  for (int i = 0; i < 1000; ++i)
    std::ofstream(concat(folder / "x", ".partial-", ::getpid(), "-", i)) << "of the same process id elsewhere";
  std::ofstream(folder / "x.partial-of-my-thesis") << "mine";
  write_file(folder / "x", "new");
  EXPECT_EQ(read_file(folder / "x", kPlenty), "new");
  EXPECT_EQ(entries(folder.path()), 1002u) << "only names of its own kind may be removed";
}

TEST(AtomicFile, KeepsFilesThatAreBeingWritten) {
  const test::TemporaryFolder folder;
  AtomicFile mine(folder / "x");
  mine.write("mine");
  EXPECT_EQ(in_child([&] {
              write_file(folder / "x", "of the child");
              return 0;
            }),
            0);
  EXPECT_EQ(read_file(folder / "x", kPlenty), "of the child");
  mine.commit();
  EXPECT_EQ(read_file(folder / "x", kPlenty), "mine");
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(AtomicFile, AllowsManyWritersOfOneName) {
  const test::TemporaryFolder folder;
  std::vector<std::jthread> writers;
  std::atomic<int> failures = 0;
  for (int w = 0; w < 8; ++w) {
    writers.emplace_back([&, w] {
      for (int i = 0; i < 10; ++i) failures += thrown_message([&] { write_file(folder / "x", concat(w)); }) != "";
    });
  }
  writers.clear();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(AtomicFile, NamesPathAndReason) {
  EXPECT_THAT(thrown_message([] { AtomicFile("/nonexistent/x"); }),
              HasSubstr("[file] cannot create /nonexistent/x: No such file or directory; its folder does not exist"));
  const test::TemporaryFolder folder;
  fs::create_directory(folder / "x");
  EXPECT_THAT(thrown_message([&] { write_file(folder / "x", "a"); }),
              HasSubstr("[file] cannot rename to " + (folder / "x")));
  EXPECT_EQ(entries(folder.path()), 1u) << "the aside file is left behind";
}

TEST(CopyFile, CopiesWholeFilesOrNothing) {
  const test::TemporaryFolder folder;
  const std::string large((1 << 16) + 7, 'x');
  write_file(folder / "from", large);
  write_file(folder / "to", "old");
  EXPECT_THAT(thrown_message([&] { copy_file(folder / "gone", folder / "to"); }), HasSubstr("cannot open "));
  EXPECT_THAT(thrown_message([&] { copy_file(folder.path(), folder / "to"); }), HasSubstr("must be a file"));
  EXPECT_EQ(read_file(folder / "to", kPlenty), "old");
  copy_file(folder / "from", folder / "to");
  EXPECT_EQ(read_file(folder / "to", kPlenty), large);
  EXPECT_EQ(entries(folder.path()), 2u);
}

TEST(ReadFile, ReadsWholeFilesWithinABound) {
  const test::TemporaryFolder folder;
  const std::string bytes(200'000, 'b');
  write_file(folder / "x", bytes);
  EXPECT_EQ(read_file(folder / "x", 200'000), bytes);
  EXPECT_THAT(thrown_message([&] { read_file(folder / "x", 199'999); }),
              HasSubstr("is too large: 200000 bytes, at most 199999"));
  EXPECT_THAT(thrown_message([&] { read_file("/dev/zero", 1000); }), HasSubstr("is too large"));
  EXPECT_THAT(thrown_message([&] { read_file(folder.path(), 1000); }), HasSubstr(" must be a file: got a folder"));
  EXPECT_THAT(thrown_message([&] { read_file(folder / "y", 1000); }), HasSubstr("cannot open"));
}

TEST(RunFolder, CreatesItsFoldersAndNamesItsFiles) {
  const test::TemporaryFolder folder;
  const RunFolder run(folder / "deep/run");
  EXPECT_FALSE(fs::exists(run.path())) << "names alone must not touch the disk";
  run.create();
  run.create();
  EXPECT_TRUE(fs::is_directory(run.checkpoints()));
  EXPECT_TRUE(fs::is_directory(run.tensorboard()));
  EXPECT_EQ(run.config(), run.path() + "/config.toml");
  EXPECT_EQ(run.metrics(), run.path() + "/metrics.jsonl");
  EXPECT_EQ(run.metric_names(), run.path() + "/metrics.json");
  EXPECT_EQ(run.report(), run.path() + "/report.html");
  EXPECT_EQ(run.pipeline_trace(), run.path() + "/pipeline_trace.json");
  EXPECT_EQ(run.builtin_text(), run.path() + "/builtin_text");
  EXPECT_EQ(run.log(3), run.path() + "/log-rank-3.txt");
}

TEST(RunFolder, RefusesAFileInItsPlace) {
  const test::TemporaryFolder folder;
  write_file(folder / "run", "");
  EXPECT_THAT(thrown_message([&] { RunFolder(folder / "run").create(); }),
              HasSubstr("[file] cannot create the folder"));
  EXPECT_THAT(thrown_message([&] { RunFolder("").create(); }), HasSubstr("run.folder must not be empty"));
}

TEST(FolderAppears, LooksAgainUntilTheLimit) {
  test::TemporaryFolder folder;
  EXPECT_TRUE(folder_appears(folder.path(), std::chrono::milliseconds(0)));
  EXPECT_FALSE(folder_appears(folder / "absent", std::chrono::milliseconds(200)));
  std::ofstream(folder / "file") << "no folder";
  EXPECT_FALSE(folder_appears(folder / "file", std::chrono::milliseconds(0)));
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    fs::create_directory(folder / "late");
  });
  EXPECT_TRUE(folder_appears(folder / "late", std::chrono::minutes(10)));
  other.join();
}

}  // namespace
}  // namespace colossal::file_test
