// What golden values are compared with, and the numbers that they were computed from.
#pragma once
#include <gtest/gtest.h>

#include <cmath>

namespace colossal::noise::golden {

/// Checks a value against one that is given to 13 digits.
inline void expect_digits(double value, double golden) {
  EXPECT_NEAR(value, golden, 1e-12 * std::abs(golden)) << "instead of " << golden;
}

/// Returns number `i` of the picture and of its noise.
inline double picture(int i) { return std::sin(0.3 * i + 0.1); }
inline double noise_of(int i) { return std::cos(0.5 * i + 0.2); }

/// The output of a model that is linear in what it sees and in the time.
inline double model(double seen, double time) { return 0.5 * seen + 0.1 + 0.0002 * time; }

}  // namespace colossal::noise::golden
