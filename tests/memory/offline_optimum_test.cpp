// The lower bound for policies, compared with an exhaustive search.
#include "colossal/memory/tiers/offline_optimum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace colossal::memory::offline_optimum_test {
namespace {

using Kind = TierEvent::Kind;

/// Returns the fewest bytes that a host of `budget` bytes reads. It searches everything that the host may hold after
/// each event: any number of bytes of each tensor. The tensors have a few bytes each.
int64_t exhaustive_optimum(const std::vector<TierEvent>& events, int64_t budget, size_t tensors) {
  using Held = std::vector<int64_t>;
  std::map<Held, int64_t> cost{{Held(tensors), 0}};
  for (const TierEvent& event : events) {
    std::map<Held, int64_t> after;
    for (const auto& [held, read] : cost) {
      const int64_t had = held[event.number];
      // Tries every way to evict some of the held bytes, with all of the event's tensor held.
      Held now(tensors);
      const auto choose = [&](auto&& self, size_t tensor) -> void {
        if (tensor == tensors) {
          int64_t sum = 0;
          for (const int64_t bytes : now) sum += bytes;
          if (sum > budget) return;
          const int64_t more = event.kind == Kind::Borrow ? event.bytes - had : 0;
          const auto place = after.emplace(now, read + more).first;
          place->second = std::min(place->second, read + more);
          return;
        }
        if (tensor == event.number) {
          now[tensor] = event.kind == Kind::Gone ? 0 : event.bytes;
          return self(self, tensor + 1);
        }
        for (int64_t bytes = 0; bytes <= held[tensor]; ++bytes) now[tensor] = bytes, self(self, tensor + 1);
      };
      choose(choose, 0);
    }
    cost = std::move(after);
  }
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [held, read] : cost) least = std::min(least, read);
  return least;
}

TEST(OfflineOptimum, EqualsAnExhaustiveSearch) {
  std::mt19937 random(11);
  constexpr size_t kTensors = 4;
  for (int round = 0; round < 60; ++round) {
    std::vector<int64_t> sizes(kTensors, 1);
    if (round % 2)
      for (int64_t& size : sizes) size = 1 + random() % 3;
    const int64_t budget = *std::max_element(sizes.begin(), sizes.end()) + random() % 3;
    std::vector<TierEvent> pass;
    for (int i = 0; i < 8; ++i) {
      const size_t number = random() % kTensors;
      const auto kind = random() % 6;
      pass.push_back({kind == 0 ? Kind::Gone : kind == 1 ? Kind::Set : Kind::Borrow, number, sizes[number]});
    }
    std::vector<TierEvent> all;
    int64_t read = 0;
    for (const OptimalPass& one : offline_optimum(pass, budget, 3)) {
      read += one.bytes_read;
      all.insert(all.end(), pass.begin(), pass.end());
      ASSERT_EQ(read, exhaustive_optimum(all, budget, kTensors)) << "round " << round;
    }
  }
}

// Five tensors in a cycle, with room for four: after the first pass, one of four uses is a read.
TEST(OfflineOptimum, ConsidersUsesInTheNextPass) {
  std::vector<TierEvent> circle;
  for (size_t i = 0; i < 5; ++i) circle.push_back({Kind::Borrow, i, 10});
  const std::vector<OptimalPass> passes = offline_optimum(circle, 40, 5);
  EXPECT_EQ(passes[0].bytes_read, 50);
  EXPECT_EQ(passes[0].evictions, 1);
  int64_t later = 0;
  for (size_t i = 1; i < 5; ++i) later += passes[i].bytes_read;
  EXPECT_EQ(later, 50) << "one of four uses: twenty uses are five reads, where the one used longest ago makes 20";
  EXPECT_EQ(offline_optimum(circle, 50, 2)[1].bytes_read, 0);
  EXPECT_EQ(offline_optimum(circle, 5, 2)[1].bytes_read, 50) << "larger than the host";
  EXPECT_EQ(
      offline_optimum({{Kind::Set, 0, 10}, {Kind::Set, 1, 30}, {Kind::Gone, 1, 30}, {Kind::Borrow, 0, 10}}, 32, 2)[1]
          .bytes_read,
      8)
      << "leaves in part";
}

}  // namespace
}  // namespace colossal::memory::offline_optimum_test
