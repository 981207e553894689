// What is foretold of a pass: the one before, as long as it goes the same way.
#include "colossal/memory/use_order.h"

#include <gtest/gtest.h>

namespace colossal::memory::use_order_test {
namespace {

/// Goes through a pass and returns what was foretold behind each use; -1: nothing.
std::vector<int> foretold(UseOrder& order, const std::vector<size_t>& pass) {
  std::vector<int> result;
  for (const size_t chunk : pass) {
    order.used(chunk);
    result.push_back(order.next() ? static_cast<int>(*order.next()) : -1);
  }
  order.end_pass();
  return result;
}

TEST(UseOrder, ForetellsFromTheSecondPassOn) {
  UseOrder order;
  EXPECT_EQ(order.next(), std::nullopt);
  EXPECT_EQ(foretold(order, {0, 1, 2, 1, 0}), (std::vector<int>{-1, -1, -1, -1, -1}));
  EXPECT_EQ(foretold(order, {0, 1, 2, 1, 0}), (std::vector<int>{1, 2, 1, 0, -1}));
}

TEST(UseOrder, APassThatGoesAnotherWayIsLearnt) {
  UseOrder order;
  foretold(order, {0, 1, 2, 1, 0});
  EXPECT_EQ(foretold(order, {0, 2, 1, 0}), (std::vector<int>{1, -1, -1, -1}));
  EXPECT_EQ(foretold(order, {0, 2, 1, 0}), (std::vector<int>{2, 1, 0, -1}));
  EXPECT_EQ(foretold(order, {0, 2, 1, 0, 3}), (std::vector<int>{2, 1, 0, -1, -1}));  // goes on where the last one ended
  EXPECT_EQ(foretold(order, {0, 2, 1, 0, 3}), (std::vector<int>{2, 1, 0, 3, -1}));
}

TEST(UseOrder, EvaluationIsTheBeginningOfATrainingPassAndChangesNothing) {
  UseOrder order;
  foretold(order, {0, 1, 2, 1, 0});
  EXPECT_EQ(foretold(order, {0, 1, 2}), (std::vector<int>{1, 2, 1}));
  EXPECT_EQ(foretold(order, {0, 1, 2, 1, 0}), (std::vector<int>{1, 2, 1, 0, -1}));
}

}  // namespace
}  // namespace colossal::memory::use_order_test
