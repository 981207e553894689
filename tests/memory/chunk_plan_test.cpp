// Packing: every parameter is in one chunk of its group, within the capacity, padded for the ranks that share it.
#include "colossal/memory/chunk_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace colossal::memory::chunk_plan_test {
namespace {

TEST(ChunkPlan, HoldsEveryParameterOnceInOrderAndWithinItsCapacity) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<PackItem> items;
    int64_t ranks_of[3];  // number of ranks of each group
    for (int64_t& ranks : ranks_of) ranks = 1 + static_cast<int64_t>(random() % 5);
    for (int i = 0, n = 1 + static_cast<int>(random() % 40); i < n; ++i) {
      const auto group = static_cast<int64_t>(random() % 3);
      items.push_back({static_cast<int64_t>(random() % 300), group, ranks_of[group]});
    }
    const int64_t target = 1 + static_cast<int64_t>(random() % 500);
    const ChunkPlan plan = plan_chunks(items, target);
    std::set<size_t> seen;
    int64_t held = 0, length = 0;
    size_t first_before = 0;
    for (const PackedChunk& chunk : plan.chunks) {
      ASSERT_EQ(chunk.items.size(), chunk.offsets.size());
      EXPECT_GE(chunk.items.front(), first_before);
      first_before = chunk.items.front();
      int64_t end = 0;
      for (size_t i = 0; i < chunk.items.size(); ++i) {
        EXPECT_TRUE(seen.insert(chunk.items[i]).second);
        EXPECT_EQ(items[chunk.items[i]].group, items[chunk.items[0]].group);
        EXPECT_EQ(chunk.offsets[i], end);
        end += items[chunk.items[i]].size;
        if (i > 0) EXPECT_LT(chunk.items[i - 1], chunk.items[i]);
      }
      if (chunk.items.size() > 1) EXPECT_LE(end, plan.capacity);
      const int64_t ranks = ranks_of[items[chunk.items[0]].group];
      EXPECT_EQ(chunk.length % ranks, 0);
      EXPECT_GE(chunk.length, end);
      EXPECT_LT(chunk.length - end, 16 * ranks);
      held += end;
      length += chunk.length;
    }
    EXPECT_EQ(seen.size(), items.size());
    EXPECT_EQ(plan.padding, length - held);
    EXPECT_LE(plan.capacity, target);
  }
}

TEST(SegmentLength, CutsIntoFewestSegmentsAlignedToPowersOfTwo) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    const int64_t capacity = 1 + static_cast<int64_t>(random() % 20000),
                  length = 1 + static_cast<int64_t>(random() % 100000), segment = segment_length(length, capacity);
    ASSERT_GE(segment, 1);
    EXPECT_LE(segment, capacity);
    if (length <= capacity) {
      EXPECT_EQ(segment, length);
      continue;
    }
    int64_t unit = 1;
    while (unit < 4096 && 2 * unit <= capacity) unit *= 2;
    EXPECT_EQ(segment % unit, 0) << length << " in " << capacity;
    // No coarser cut into complete units fits the capacity, and the segments are of about one length.
    const int64_t count = (length + segment - 1) / segment;
    EXPECT_GT((length + count - 2) / (count - 1), capacity / unit * unit) << length << " in " << capacity;
    EXPECT_LT(segment - unit, (length + count - 1) / count) << length << " in " << capacity;
  }
}

TEST(ChunkPlan, GivesOversizedParametersTheirOwnChunk) {
  const ChunkPlan plan = plan_chunks({{10, 0}, {1000, 0}, {10, 0}}, 100);
  ASSERT_EQ(plan.chunks.size(), 3u);
  EXPECT_EQ(plan.chunks[1].items, std::vector<size_t>{1});
}

// Blocks of 3 * 30: a chunk of 100 elements would hold one block and a part of the next; a chunk of 90 holds one block.
TEST(ChunkPlan, ChoosesACapacityThatChunksFill) {
  std::vector<PackItem> items;
  for (int i = 0; i < 12; ++i) items.push_back({i % 3 == 0 ? 50 : 20, 0});
  const ChunkPlan plan = plan_chunks(items, 100);
  EXPECT_EQ(plan.capacity, 90);
  ASSERT_EQ(plan.chunks.size(), 4u);
  for (const PackedChunk& chunk : plan.chunks) EXPECT_EQ(chunk.length, 90);
}

TEST(ChunkPlan, PadsOnlyForSeveralRanks) {
  EXPECT_EQ(plan_chunks({{7, 0, 3}}, 100).chunks[0].length, 48);
  EXPECT_EQ(plan_chunks({{7, 0, 1}}, 100).chunks[0].length, 7);
}

}  // namespace
}  // namespace colossal::memory::chunk_plan_test
