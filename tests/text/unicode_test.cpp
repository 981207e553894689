// Classes of characters inside the basic plane, which are tabled, and outside, which are computed.
#include "colossal/text/unicode.h"

#include <gtest/gtest.h>

namespace colossal::text::unicode_test {
namespace {

TEST(Unicode, ClassifiesCharactersOfAllPlanes) {
  for (const uint32_t c : {0x41u, 0x4E2Du, 0xFFDCu, 0x10000u, 0x1D400u, 0x20000u, 0x323AFu})
    EXPECT_TRUE(is_letter(c)) << c;
  for (const uint32_t c : {0x31u, 0xFF19u, 0x10107u, 0x1D7CEu}) EXPECT_TRUE(is_number(c)) << c;
  for (const uint32_t c : {0x300u, 0xFE2Fu, 0x101FDu, 0xE01EFu}) EXPECT_TRUE(is_mark(c)) << c;
  for (const uint32_t c : {0x21u, 0xFF5Fu, 0x10100u}) EXPECT_TRUE(is_punctuation(c)) << c;
  for (const uint32_t c : {0xFFFFu, 0x1F600u, 0x10FFFFu, 0x110000u, 0xFFFFFFFFu}) {
    EXPECT_FALSE(is_letter(c) || is_number(c) || is_mark(c) || is_punctuation(c)) << c;
  }
}

}  // namespace
}  // namespace colossal::text::unicode_test
