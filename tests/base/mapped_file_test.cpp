// Which parts of a mapped file are in memory.
#include "colossal/base/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <fstream>

#include "support/temporary_folder.h"

namespace colossal::mapped_file_test {
namespace {

constexpr size_t kBytes = 1 << 20;

TEST(MappedFile, FindsPartsInMemory) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "file") << std::string(kBytes, 'x');
  const auto file = MappedFile::open(folder / "file");
  EXPECT_TRUE(file->is_in_memory(file->bytes()));
  EXPECT_TRUE(file->is_in_memory(file->bytes().substr(5000, 1)));
  EXPECT_TRUE(file->is_in_memory(file->bytes().substr(kBytes)));
}

TEST(MappedFile, FindsPartsOnTheDisk) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "file") << std::string(kBytes, 'x');
  const int descriptor = open((folder / "file").c_str(), O_RDONLY | O_CLOEXEC);
  struct statfs system = {};
  constexpr long kTmpfs = 0x01021994;
  const bool has_disk = fstatfs(descriptor, &system) == 0 && system.f_type != kTmpfs;
  const bool is_dropped =
      has_disk && fsync(descriptor) == 0 && posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) == 0;
  close(descriptor);
  if (!is_dropped) GTEST_SKIP() << "the folder for temporary files is in memory";
  const auto file = MappedFile::open(folder / "file");
  const std::string_view half = file->bytes().substr(kBytes / 2);
  EXPECT_FALSE(file->is_in_memory(file->bytes()));
  EXPECT_FALSE(file->is_in_memory(half));
  for (const char byte : half) ASSERT_EQ(byte, 'x');
  EXPECT_TRUE(file->is_in_memory(half));
}

}  // namespace
}  // namespace colossal::mapped_file_test
