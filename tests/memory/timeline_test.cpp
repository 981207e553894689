// Predictions of a pass: the order of the previous one, as long as the pass follows it.
#include "colossal/memory/timeline.h"

#include <gtest/gtest.h>

namespace colossal::memory::timeline_test {
namespace {

/// Runs a pass and returns the prediction after each use; -1: none.
std::vector<int> foretold(Timeline& order, const std::vector<size_t>& pass) {
  std::vector<int> result;
  for (const size_t chunk : pass) {
    order.used(chunk);
    result.push_back(order.next() ? static_cast<int>(*order.next()) : -1);
  }
  order.end_pass();
  return result;
}

TEST(Timeline, PredictsFromTheSecondPassOn) {
  Timeline order;
  EXPECT_EQ(order.next(), std::nullopt);
  EXPECT_EQ(foretold(order, {0, 1, 2, 1, 0}), (std::vector<int>{-1, -1, -1, -1, -1}));
  EXPECT_EQ(foretold(order, {0, 1, 2, 1, 0}), (std::vector<int>{1, 2, 1, 0, -1}));
}

TEST(Timeline, LearnsAPassOfAnotherOrder) {
  Timeline order;
  foretold(order, {0, 1, 2, 1, 0});
  EXPECT_EQ(foretold(order, {0, 2, 1, 0}), (std::vector<int>{1, -1, -1, -1}));
  EXPECT_EQ(foretold(order, {0, 2, 1, 0}), (std::vector<int>{2, 1, 0, -1}));
  // Continues after the end of the previous pass.
  EXPECT_EQ(foretold(order, {0, 2, 1, 0, 3}), (std::vector<int>{2, 1, 0, -1, -1}));
  EXPECT_EQ(foretold(order, {0, 2, 1, 0, 3}), (std::vector<int>{2, 1, 0, 3, -1}));
}

TEST(Timeline, ResumesAfterASmallDifference) {
  Timeline order(Timeline::Resumes::Yes);
  foretold(order, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(foretold(order, {0, 1, 3, 4, 5}), (std::vector<int>{1, 2, 4, 5, -1})) << "2 is left out";
  EXPECT_EQ(foretold(order, {0, 9, 1, 3, 4, 5}), (std::vector<int>{1, 1, 3, 4, 5, -1})) << "9 is new";
  EXPECT_EQ(foretold(order, {0, 1, 9, 3, 4, 5}), (std::vector<int>{9, 3, 3, 4, 5, -1})) << "9 comes later";
  EXPECT_EQ(foretold(order, {0, 1, 9, 3, 4, 5}), (std::vector<int>{1, 9, 3, 4, 5, -1})) << "and is learnt there";
}

TEST(Timeline, StopsPredictingForAnotherOrder) {
  Timeline order(Timeline::Resumes::Yes);
  std::vector<size_t> one, other;
  for (size_t i = 0; i < 100; ++i) one.push_back(i), other.push_back(200 + i);
  foretold(order, one);
  const std::vector<int> found = foretold(order, other);
  EXPECT_EQ(found.front(), 0);
  EXPECT_EQ(found.back(), -1);
  EXPECT_EQ(foretold(order, other)[98], 299);
}

TEST(Timeline, RestartsAPassWithoutLearningIt) {
  Timeline order;
  foretold(order, {0, 1, 2, 1, 0});
  const uint64_t next = *order.next_use(1);
  const uint64_t orders = order.orders();
  for (const size_t chunk : {0, 1, 9}) order.used(chunk);
  const uint64_t revision = order.revision();
  order.restart_pass();
  EXPECT_NE(order.revision(), revision);
  EXPECT_EQ(order.position(), 0U);
  EXPECT_EQ(order.next_use(1), next);
  EXPECT_EQ(foretold(order, {0, 1, 2, 1, 0}), (std::vector<int>{1, 2, 1, 0, -1}));
  EXPECT_EQ(order.orders(), orders);
  order.restart_pass();  // has no use to forget
  EXPECT_EQ(foretold(order, {0, 1, 2, 1, 0}), (std::vector<int>{1, 2, 1, 0, -1}));
}

TEST(Timeline, IgnoresAPassThatStopsEarly) {
  Timeline order;
  foretold(order, {0, 1, 2, 1, 0});
  EXPECT_EQ(foretold(order, {0, 1, 2}), (std::vector<int>{1, 2, 1}));
  EXPECT_EQ(foretold(order, {0, 1, 2, 1, 0}), (std::vector<int>{1, 2, 1, 0, -1}));
}

TEST(Timeline, PredictsTheNextUseAcrossPasses) {
  Timeline order;
  foretold(order, {0, 1, 2, 1, 0, 3});
  EXPECT_EQ(order.current(), std::nullopt);
  EXPECT_EQ(order.until(2), 3u) << "between passes: of the one to come";
  order.used(0);
  EXPECT_EQ(order.previous(), std::nullopt);
  order.used(1);
  EXPECT_EQ(order.current(), 1u);
  EXPECT_EQ(order.previous(), 0u);
  EXPECT_EQ(order.next(), 2u);
  EXPECT_EQ(order.until(0), 3u);
  EXPECT_EQ(order.until(1), 2u) << "again";
  EXPECT_EQ(order.until(7), std::nullopt) << "not at all";
  EXPECT_EQ(order.since(0), 1u);
  EXPECT_EQ(order.since(2), std::nullopt);
  for (const size_t chunk : {2, 1, 0}) order.used(chunk);
  EXPECT_EQ(order.next(), 3u);
  EXPECT_EQ(order.until(2), 4u) << "0 1 2 of the next pass behind 3";
  EXPECT_EQ(order.until(0), 2u);
  EXPECT_EQ(order.since(1), 1u) << "the last time";
  order.used(3);
  EXPECT_EQ(order.next(), std::nullopt) << "the pass ends";
  EXPECT_EQ(order.until(0), 1u);
  order.used(0);  // another order: no use is predicted
  EXPECT_EQ(order.next(), std::nullopt);
  EXPECT_EQ(order.until(1), std::nullopt);
  EXPECT_EQ(order.since(3), 1u);
}

// A predicted use keeps its number until it happens, across the end of a pass; otherwise the revision changes.
TEST(Timeline, KeepsTheNumberOfTheNextUse) {
  Timeline order;
  foretold(order, {0, 1, 2, 1, 0, 3});
  const uint64_t revision = order.revision();
  order.used(0);
  const auto two = order.next_use(2), zero = order.next_use(0);
  EXPECT_EQ(*two + 2, *zero);
  for (const size_t chunk : {1, 2, 1}) order.used(chunk);
  EXPECT_EQ(order.next_use(0), zero);
  EXPECT_EQ(*order.next_use(2), *two + 6);
  for (const size_t chunk : {0, 3}) order.used(chunk);
  EXPECT_EQ(*order.next_use(2), *two + 6);
  order.end_pass();
  EXPECT_EQ(*order.next_use(2), *two + 6);
  EXPECT_EQ(order.until(2), 3u);
  order.end_pass();
  EXPECT_EQ(order.revision(), revision) << "an empty pass changes nothing";
  order.used(0);
  order.end_pass();
  EXPECT_NE(order.revision(), revision) << "it stopped early: what was to come behind it does not";
  EXPECT_EQ(order.until(2), 3u);
  const uint64_t stopped = order.revision();
  order.used(1);
  EXPECT_NE(order.revision(), stopped) << "it goes another way";
  EXPECT_EQ(order.next_use(2), std::nullopt);
}

}  // namespace
}  // namespace colossal::memory::timeline_test
