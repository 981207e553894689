#include "colossal/base/checksum.h"

#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/temporary_folder.h"

namespace colossal::checksum_test {
namespace {

std::string pattern(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 131 + i / 251);
  return bytes;
}

TEST(Checksum, HasThePublishedValues) {
  EXPECT_EQ(checksum(""), "99aa06d3014798d86001c324468d497f");  // XXH3-128 of no bytes, seed 0
  EXPECT_EQ(checksum_number("", 0), 0x2d06800538d394c2);        // XXH3-64 of no bytes
}

TEST(Checksum, DoesNotDependOnThePieces) {
  const std::string bytes = pattern(100'003);
  for (const size_t piece : {1u, 7u, 1000u, 65'536u}) {
    Checksum sum;
    for (size_t i = 0; i < bytes.size(); i += piece)
      sum.update(bytes.data() + i, std::min<size_t>(piece, bytes.size() - i));
    EXPECT_EQ(sum.hex(), checksum(bytes)) << piece;
  }
}

TEST(Checksum, AllowsHexMidway) {
  Checksum sum;
  EXPECT_EQ(sum.hex(), checksum(""));
  sum.update("ab", 2);
  EXPECT_EQ(sum.hex(), checksum("ab"));
  sum.update("c", 1);
  EXPECT_EQ(sum.hex(), checksum("abc"));
}

TEST(Checksum, ChangesWithEveryByte) {
  const std::string bytes = pattern(300);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string other = bytes;
    other[i] ^= 1;
    EXPECT_NE(checksum(other), checksum(bytes)) << i;
  }
}

TEST(Checksum, EqualsTheChecksumOfAFilesBytes) {
  const test::TemporaryFolder folder;
  const std::string bytes = pattern((3 << 20) + 17);  // several pieces and a remainder
  write_file(folder / "x", bytes);
  EXPECT_EQ(file_checksum(folder / "x"), checksum(bytes));
  EXPECT_THROW(file_checksum(folder / "y"), Error);
  EXPECT_THROW(file_checksum(folder.path()), Error);
}

}  // namespace
}  // namespace colossal::checksum_test
