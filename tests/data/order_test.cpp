#include "colossal/data/order.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::data::order_test {
namespace {

std::vector<int64_t> visited(int64_t count, uint64_t seed, int64_t epoch) {
  const Order order(count, seed, epoch);
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < count; ++i) samples.push_back(order(i));
  return samples;
}

TEST(Order, VisitsEachSampleOnce) {
  for (int64_t count = 1; count <= 300; ++count) {
    const std::vector<int64_t> samples = visited(count, 7, count % 3);
    const std::set<int64_t> distinct(samples.begin(), samples.end());
    ASSERT_EQ(static_cast<int64_t>(distinct.size()), count);
    ASSERT_EQ(*distinct.begin(), 0);
    ASSERT_EQ(*distinct.rbegin(), count - 1);
  }
}

TEST(Order, DependsOnSeedAndEpochAlone) {
  EXPECT_EQ(visited(1000, 1, 0), visited(1000, 1, 0));
  EXPECT_NE(visited(1000, 1, 0), visited(1000, 2, 0));
  EXPECT_NE(visited(1000, 1, 0), visited(1000, 1, 1));
}

TEST(Order, MixesSmallAndLargeSets) {
  for (int64_t count : {16, 1000, 65536}) {
    const std::vector<int64_t> samples = visited(count, 3, 0);
    int64_t neighbours = 0, fixed = 0;
    for (int64_t i = 1; i < count; ++i) {
      neighbours += std::abs(samples[i] - samples[i - 1]) == 1;
      fixed += samples[i] == i;
    }
    // A random order keeps about 2 pairs of neighbours, and 1 sample in its place.
    EXPECT_LE(neighbours, 2 + count / 8) << count;
    EXPECT_LE(fixed, 4 + count / 100) << count;
  }
}

TEST(Order, HandlesSetsTooLargeForATable) {
  const int64_t count = (int64_t{1} << 40) + 12345;
  const Order order(count, 5, 2);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 10000; ++i) {
    const int64_t sample = order(count - 1 - i);
    ASSERT_GE(sample, 0);
    ASSERT_LT(sample, count);
    seen.insert(sample);
  }
  EXPECT_EQ(seen.size(), 10000u);
}

TEST(Order, RefusesPositionsOutside) {
  EXPECT_THROW(Order(0, 0, 0), Error);
  EXPECT_THROW(Order(3, 0, 0)(3), Error);
  EXPECT_THROW(Order(3, 0, 0)(-1), Error);
}

}  // namespace
}  // namespace colossal::data::order_test
