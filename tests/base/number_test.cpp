#include "colossal/base/number.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

namespace colossal::number_test {
namespace {

TEST(PrintNumber, PrintsTheShortestText) {
  EXPECT_EQ(print_number(0.1), "0.1");
  EXPECT_EQ(print_number(1), "1");
  EXPECT_EQ(print_number(1048576), "1048576");
  EXPECT_EQ(print_number(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(print_number(-std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(PrintNumber, ReadsBackEqual) {
  double number = 5e-324;
  for (int i = 0; i < 2000; ++i, number = number * 1.43 + number / 7)
    EXPECT_EQ(std::strtod(print_number(number).c_str(), nullptr), number);
}

TEST(TextOf, KeepsSignificantDigits) {
  EXPECT_EQ(text_of(1234.5678, 4), "1235");
  EXPECT_EQ(text_of(0.00012345, 3), "0.000123");
  EXPECT_EQ(text_of(1e9, 2), "1e+09");
  EXPECT_EQ(text_of(-2, 6), "-2");
}

TEST(FixedText, KeepsDecimals) {
  EXPECT_EQ(fixed_text(0.5, 2), "0.50");
  EXPECT_EQ(fixed_text(2.5e7, 0), "25000000");
  EXPECT_EQ(fixed_text(-1e300, 1).size(), 304U) << "no buffer cuts a long number";
}

TEST(ShortestDouble, RestoresTheStoredDecimal) {
  for (const double decimal : {1e-5, 1e-6, 0.1, 500000.0, -2.5, 0.0})
    EXPECT_EQ(shortest_double(static_cast<float>(decimal)), decimal);
  EXPECT_EQ(static_cast<float>(shortest_double(0.333333343F)), 0.333333343F);
}

}  // namespace
}  // namespace colossal::number_test
