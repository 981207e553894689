#include "colossal/base/bytes.h"

#include <gtest/gtest.h>

namespace colossal::bytes_test {
namespace {

TEST(Bytes, ParsesUnits) {
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("10B"), 10);
  EXPECT_EQ(parse_bytes("2KB"), 2000);
  EXPECT_EQ(parse_bytes("2KiB"), 2048);
  EXPECT_EQ(parse_bytes("2 mib"), 2 << 20);
  EXPECT_EQ(parse_bytes("70GiB"), int64_t{70} << 30);
  EXPECT_EQ(parse_bytes("1.5GB"), 1'500'000'000);
  EXPECT_EQ(parse_bytes("3TiB"), int64_t{3} << 40);
  EXPECT_EQ(parse_bytes("2pib"), int64_t{2} << 50);
  EXPECT_EQ(parse_bytes("7EiB"), int64_t{7} << 60);
  EXPECT_EQ(parse_bytes("9EB"), int64_t{9} * 1'000'000'000'000'000'000);
}

TEST(Bytes, RefusesTextThatIsNoSize) {
  for (const char* text : {"", "GiB", "-1", "1e3", "1 2", "1..2", ".", "1ZB", "8EiB", "10EB", "1 GiB x", "1Gi",
                           "9300000TB", "9223372036854775808"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(Bytes, PrintsTheShortestExactForm) {
  EXPECT_EQ(print_bytes(0), "0B");
  EXPECT_EQ(print_bytes(1000), "1000B");
  EXPECT_EQ(print_bytes(1 << 20), "1MiB");
  EXPECT_EQ(print_bytes((1 << 20) + 1), "1048577B");
  for (int64_t bytes = 1; bytes > 0 && bytes < (int64_t{1} << 61); bytes = bytes * 3 + 7) {
    EXPECT_EQ(parse_bytes(print_bytes(bytes)), bytes);
    EXPECT_EQ(parse_bytes(print_bytes(bytes << 1)), bytes << 1);
  }
}

TEST(Bytes, PrintsRoundedSizesForPeople) {
  EXPECT_EQ(readable_bytes(512), "512 B");
  EXPECT_EQ(readable_bytes(1536), "1.5 KiB");
  EXPECT_EQ(readable_bytes(int64_t{700} << 20), "700 MiB");
  EXPECT_EQ(readable_bytes(int64_t{5} << 50), "5.0 PiB");
  EXPECT_EQ(readable_bytes(int64_t{7} << 60), "7.0 EiB");
}

TEST(Bytes, PrintsRoundedSizesThatSuffice) {
  EXPECT_EQ(readable_at_least(512), "512 B");
  EXPECT_EQ(readable_at_least(1536), "1.5 KiB");
  EXPECT_EQ(readable_at_least(1537), "1.6 KiB");
  EXPECT_EQ(readable_at_least((int64_t{700} << 20) + 1), "701 MiB");
  for (int64_t bytes = 1; bytes < (int64_t{1} << 50); bytes = bytes * 3 + 7)
    EXPECT_GE(parse_bytes(readable_at_least(bytes)).value(), bytes);
}

}  // namespace
}  // namespace colossal::bytes_test
