#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "colossal/memory/tiers/disk_space.h"

namespace colossal::memory::free_space_test {
namespace {

/// A model with one flag per byte, searched from the start.
struct Model {
  std::vector<bool> taken;

  /// Offset and length of every free run.
  std::vector<std::pair<int64_t, int64_t>> runs() const {
    std::vector<std::pair<int64_t, int64_t>> found;
    for (size_t i = 0, end; i < taken.size(); i = end) {
      for (end = i + 1; end < taken.size() && taken[end] == taken[i];) ++end;
      if (!taken[i]) found.emplace_back(static_cast<int64_t>(i), static_cast<int64_t>(end - i));
    }
    return found;
  }
  std::optional<int64_t> smallest_fitting(int64_t bytes) const {
    std::optional<std::pair<int64_t, int64_t>> best;
    for (const auto& run : runs())
      if (run.second >= bytes && (!best || run.second < best->second)) best = run;
    return best ? std::optional(best->first) : std::nullopt;
  }
  void set(int64_t offset, int64_t bytes, bool value) {
    ASSERT_LE(static_cast<size_t>(offset + bytes), taken.size());
    for (int64_t i = offset; i < offset + bytes; ++i) {
      ASSERT_NE(taken[static_cast<size_t>(i)], value) << "given twice, or taken back twice";
      taken[static_cast<size_t>(i)] = value;
    }
  }
};

TEST(FreeSpace, MatchesAModelOfEveryByte) {
  std::mt19937 draw(7);
  FreeSpace space;
  Model model;
  std::vector<std::pair<int64_t, int64_t>> live;
  for (int i = 0; i < 4000; ++i) {
    const int64_t bytes = 1 + draw() % 40;
    if (!live.empty() && draw() % 5 < 2) {
      std::swap(live[draw() % live.size()], live.back());
      const auto [offset, size] = live.back();
      live.pop_back();
      space.give_back(offset, size);
      model.set(offset, size, false);
    } else if (const auto offset = space.take(bytes)) {
      EXPECT_EQ(offset, model.smallest_fitting(bytes));
      model.set(*offset, bytes, true);
      live.emplace_back(*offset, bytes);
    } else {
      ASSERT_FALSE(model.smallest_fitting(bytes)) << "of " << bytes;
      if (live.size() > 60) continue;
      space.grow(bytes - space.tail());
      model.taken.resize(static_cast<size_t>(space.end()));
      EXPECT_GE(space.tail(), bytes);
    }
    const auto runs = model.runs();
    int64_t free = 0;
    for (const auto& run : runs) free += run.second;
    ASSERT_EQ(space.free_bytes(), free);
    const bool ends_free = !runs.empty() && runs.back().first + runs.back().second == space.end();
    ASSERT_EQ(space.tail(), ends_free ? runs.back().second : 0);
  }
  std::shuffle(live.begin(), live.end(), draw);
  for (const auto& [offset, size] : live) space.give_back(offset, size);
  EXPECT_EQ(space.take(space.end()), 0) << "all of it is one run again";
}

}  // namespace
}  // namespace colossal::memory::free_space_test
