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

TEST(ShortestDouble, RestoresTheStoredDecimal) {
  for (const double decimal : {1e-5, 1e-6, 0.1, 500000.0, -2.5, 0.0})
    EXPECT_EQ(shortest_double(static_cast<float>(decimal)), decimal);
  EXPECT_EQ(static_cast<float>(shortest_double(0.333333343F)), 0.333333343F);
}

}  // namespace
}  // namespace colossal::number_test
