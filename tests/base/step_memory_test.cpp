// Curves of a step's memory with fewer points keep its peaks.
#include "colossal/base/step_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace colossal::step_memory_test {
namespace {

using Point = StepMemory::Point;

/// A curve with one peak of the device at `peak` and one of the host just after it.
std::vector<Point> curve_of(int64_t count, int64_t peak) {
  std::vector<Point> points;
  for (int64_t event = 0; event < count; ++event)
    points.push_back(
        {.event = event,
         .kinds = {
             .parameters = 100, .activations = event == peak ? 50 : event % 7, .host = event == peak + 1 ? 30 : 1}});
  return points;
}

TEST(StepMemoryCurve, CountsTheHostApart) {
  const StepMemory::Kinds kinds{
      .parameters = 1, .gradients = 2, .states = 4, .activations = 8, .buffers = 16, .host = 32};
  EXPECT_EQ(kinds.device(), 31);
}

TEST(StepMemoryCurve, KeepsPeaksInFewerPoints) {
  for (const int64_t peak : {0, 499, 997}) {
    const std::vector<Point> all = curve_of(1000, peak);
    for (const size_t count : {size_t{1}, size_t{7}, size_t{64}}) {
      const std::vector<Point> fewer = fewer_points(all, count);
      ASSERT_EQ(fewer.size(), count);
      EXPECT_EQ(fewer.front().event, 0);
      int64_t device = 0, host = 0;
      for (size_t i = 0; i < fewer.size(); ++i) {
        device = std::max(device, fewer[i].kinds.device());
        host = std::max(host, fewer[i].kinds.host);
        EXPECT_TRUE(i == 0 || fewer[i].event > fewer[i - 1].event) << i;
        // The peak is between its point and the next one.
        if (fewer[i].kinds.device() != 150) continue;
        EXPECT_LE(fewer[i].event, peak);
        EXPECT_TRUE(i + 1 == fewer.size() || fewer[i + 1].event > peak) << i;
      }
      EXPECT_EQ(device, 150);
      EXPECT_EQ(host, 30);
    }
  }
}

TEST(StepMemoryCurve, KeepsShortCurves) {
  const std::vector<Point> all = curve_of(5, 2);
  EXPECT_EQ(fewer_points(all, 5), all);
  EXPECT_EQ(fewer_points(all, 100), all);
  EXPECT_TRUE(fewer_points({}, 3).empty());
}

}  // namespace
}  // namespace colossal::step_memory_test
