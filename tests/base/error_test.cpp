#include "colossal/base/error.h"

#include <gtest/gtest.h>

namespace colossal::error_test {
namespace {

TEST(Error, ReadsAsComponentAndMessage) {
  const Error error("linear", "sizes differ");
  EXPECT_STREQ(error.what(), "[linear] sizes differ");
  EXPECT_EQ(error.component(), "linear");
}

TEST(Require, JoinsItsPartsOnlyOnFailure) {
  EXPECT_NO_THROW(require(true, "x", "never"));
  try {
    require(false, "mesh", "got ", 3, ", wanted ", 2.5);
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[mesh] got 3, wanted 2.5");
  }
}

TEST(PlainMessage, DropsTheStackOfTorch) {
  EXPECT_EQ(plain_message(std::runtime_error("sizes differ\nException raised from f at x.cpp:1\nframe 0")),
            "sizes differ");
  EXPECT_EQ(plain_message(std::runtime_error("two\nlines")), "two\nlines");
}

TEST(WithRank, AddsTheRankOnce) {
  EXPECT_EQ(with_rank("[x] y", 2, 4), "[x] y (rank 2 of 4)");
  EXPECT_EQ(with_rank("[x] y (rank 2 of 4)", 1, 4), "[x] y (rank 2 of 4)");
  EXPECT_EQ(with_rank("[x] y", 0, 1), "[x] y");
}

}  // namespace
}  // namespace colossal::error_test
