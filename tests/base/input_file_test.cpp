#include "colossal/base/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::input_file_test {
namespace {

using test::thrown_message;
using ::testing::HasSubstr;

std::string piece(const InputFile& file, int64_t begin, int64_t count) {
  std::string bytes(static_cast<size_t>(count), '?');
  file.read(begin, count, bytes.data());
  return bytes;
}

TEST(InputFile, ReadsAnyBytes) {
  const test::TemporaryFolder folder;
  write_file(folder / "x", "0123456789");
  const auto file = InputFile::open(folder / "x");
  EXPECT_EQ(file->size(), 10);
  EXPECT_EQ(file->path(), folder / "x");
  EXPECT_EQ(file->content(), "0123456789");
  EXPECT_EQ(piece(*file, 3, 4), "3456");
  EXPECT_EQ(piece(*file, 10, 0), "");
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 11}, {11, 0}, {-1, 1}, {5, -1}, {1, INT64_MAX}})
    EXPECT_THAT(thrown_message([&, b = begin, c = count] { file->read(b, c, nullptr); }),
                HasSubstr(": the file has 10 bytes"));
  write_file(folder / "empty", "");
  EXPECT_EQ(InputFile::open(folder / "empty")->content(), "");
}

TEST(InputFile, NamesAShortenedFileAndBothSizes) {
  const test::TemporaryFolder folder;
  write_file(folder / "x", std::string(100'000, 'x'));
  const auto file = InputFile::open(folder / "x");
  std::filesystem::resize_file(folder / "x", 50'000);
  EXPECT_EQ(piece(*file, 40'000, 10'000), std::string(10'000, 'x'));
  const std::string wanted =
      "[file] " + (folder / "x") + " became shorter while it was read: it had 100000 bytes, now 50000;";
  EXPECT_THAT(thrown_message([&] { piece(*file, 40'000, 10'001); }), HasSubstr(wanted));
  EXPECT_THAT(thrown_message([&] { piece(*file, 60'000, 1); }), HasSubstr(wanted));
  EXPECT_THAT(thrown_message([&] { file->content(); }), HasSubstr(wanted));
}

TEST(InputFile, ReadsTheOldContentOfAReplacedOrRemovedFile) {
  const test::TemporaryFolder folder;
  write_file(folder / "x", "old content");
  const auto file = InputFile::open(folder / "x");
  write_file(folder / "x", "new");
  EXPECT_EQ(file->content(), "old content");
  std::filesystem::remove(folder / "x");
  EXPECT_EQ(file->content(), "old content");
}

TEST(InputFile, ServesSeveralThreads) {
  const test::TemporaryFolder folder;
  std::string bytes;
  for (int i = 0; i < 10'000; ++i) bytes += static_cast<char>(i * 31);
  write_file(folder / "x", bytes);
  const auto file = InputFile::open(folder / "x");
  std::vector<int> wrong(4, 0);
  std::vector<std::jthread> readers;
  for (int r = 0; r < 4; ++r)
    readers.emplace_back([&, r] {
      for (int i = r; i < 9'000; i += 4) wrong[r] += piece(*file, i, 1'000) != bytes.substr(i, 1'000);
    });
  readers.clear();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(InputFile, RefusesOtherThanRegularFiles) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const std::string& path : {folder / "pipe", folder.path(), std::string("/dev/zero")})
    EXPECT_EQ(thrown_message([&] { InputFile::open(path); }), "[file] must be a regular file: " + path);
  EXPECT_THAT(thrown_message([&] { InputFile::open(folder / "none"); }),
              HasSubstr("[file] cannot open " + (folder / "none") + ": No such file"));
}

}  // namespace
}  // namespace colossal::input_file_test
