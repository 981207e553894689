// The search for the largest number that works.
#include <gtest/gtest.h>

#include <vector>

#include "colossal/cli/bench/memory_try.h"

namespace colossal::cli::largest_test {
namespace {

TEST(LargestThatWorks, NeedsFewTries) {
  for (const int64_t most : {0, 1, 2, 3, 4, 7, 100, 1000}) {
    int tries = 0;
    const auto works = [&](int64_t size) { return ++tries, size <= most; };
    EXPECT_EQ(largest_that_works(1, 0, works), most);
    EXPECT_LE(tries, 21) << "10 doublings of 1 and 10 halvings of 512 for 1000";
  }
}

TEST(LargestThatWorks, SearchesWithTheGivenResolution) {
  std::vector<int64_t> tried;
  const auto works = [&](int64_t size) { return tried.push_back(size), size <= 700; };
  EXPECT_EQ(largest_that_works(100, 0.2, works), 700);
  EXPECT_EQ(tried, (std::vector<int64_t>{100, 200, 400, 800, 600, 700}));
  EXPECT_EQ(largest_that_works(701, 0.2, works), 0);
}

}  // namespace
}  // namespace colossal::cli::largest_test
