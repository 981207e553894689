// Comparisons of points with golden values.
#pragma once
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/protein/geometry.h"

namespace colossal::protein::golden {

inline void expect_near(const Point& point, const Point& wanted, double tolerance) {
  EXPECT_NEAR(point.x, wanted.x, tolerance);
  EXPECT_NEAR(point.y, wanted.y, tolerance);
  EXPECT_NEAR(point.z, wanted.z, tolerance);
}

}  // namespace colossal::protein::golden
