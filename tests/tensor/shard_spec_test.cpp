// Specs cover every logical element, with exactly one primary rank for each, for sizes that divide evenly and sizes
// that do not.
#include "colossal/tensor/shard_spec.h"

#include <gtest/gtest.h>

#include <vector>

#include "colossal/base/error.h"

namespace colossal::tensor::shard_spec_test {
namespace {

MeshCoordinates at_rank(int data, int tensor, int rank) {
  return MeshCoordinates({{"data", data, rank / tensor, tensor::BatchSplit::Rows}, {"tensor", tensor, rank % tensor}});
}

/// Checks that `holders` ranks hold each row of a one-dimensional spec, and that exactly one of them is primary.
void expect_covered(const ShardSpec& spec, int data, int tensor, int holders) {
  std::vector<int> held(spec.numel()), primary(spec.numel());
  for (int r = 0; r < data * tensor; ++r) {
    const MeshCoordinates coordinates = at_rank(data, tensor, r);
    std::vector<bool> used(spec.local_shape(coordinates)[0]);
    for (const LocalBox& block : spec.local_boxes(coordinates)) {
      for (int64_t i = 0; i < block.size[0]; ++i) {
        ++held.at(block.start[0] + i);
        primary.at(block.start[0] + i) += block.primary;
        EXPECT_FALSE(used.at(block.local_start[0] + i)) << "two blocks share a local element";
        used.at(block.local_start[0] + i) = true;
      }
    }
  }
  for (int64_t i = 0; i < spec.numel(); ++i) {
    EXPECT_EQ(held[i], holders) << i;
    EXPECT_EQ(primary[i], 1) << i;
  }
}

TEST(ShardSpec, CoversEveryElementOnce) {
  for (int tensor : {1, 2, 3, 4, 8})
    for (int64_t size : {1, 7, 24, 257})
      for (int data : {1, 2}) expect_covered(ShardSpec::split({size}, 0, {"tensor"}), data, tensor, data);
}

TEST(ShardSpec, SplitsSegmentsIndependently) {
  const ShardSpec fused = ShardSpec::split({24}, 0, {"tensor"}, {{12, 3}, {6, 3}, {6, 3}});
  const auto blocks = fused.local_boxes(at_rank(1, 2, 1));
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0].start[0], 6);
  EXPECT_EQ(blocks[1].start[0], 15);
  EXPECT_EQ(blocks[2].start[0], 21);
  EXPECT_EQ(blocks[1].local_start[0], 6);
  for (int tensor : {1, 2, 3, 4}) expect_covered(fused, 1, tensor, 1);
}

TEST(ShardSpec, HasOnePrimaryOfReplicatedGranules) {
  const ShardSpec kv = ShardSpec::split({8}, 0, {"tensor"}, {{8, 4, true}});
  expect_covered(kv, 1, 8, 4);
  expect_covered(kv, 2, 4, 4);
  EXPECT_EQ(kv.local_shape(at_rank(1, 8, 5))[0], 4);
  EXPECT_EQ(kv.local_boxes(at_rank(1, 8, 5))[0].start[0], 4);
}

TEST(ShardSpec, GivesPaddedPartsEqualRoom) {
  const ShardSpec vocabulary = ShardSpec::split({257, 8}, 0, {"tensor"});
  for (int r = 0; r < 4; ++r) EXPECT_EQ(vocabulary.local_shape(at_rank(1, 4, r)), (std::vector<int64_t>{65, 8}));
  EXPECT_EQ(vocabulary.local_boxes(at_rank(1, 4, 3))[0].size[0], 62);
}

// Shards cut what one axis left into equal pieces over another axis, with and without segments and padding.
TEST(ShardSpec, CutsShardsAfterAxes) {
  for (int pieces : {1, 2, 3})
    for (int tensor : {1, 2, 4}) {
      for (int64_t size : {1, 7, 24, 257}) {
        ShardSpec spec = ShardSpec::split({size}, 0, {"tensor"});
        spec.splits[0].shards = {"data"};
        expect_covered(spec, pieces, tensor, 1);
      }
      ShardSpec fused = ShardSpec::split({24}, 0, {"tensor"}, {{12, 3}, {6, 3}, {6, 3}});
      fused.splits[0].shards = {"data"};
      expect_covered(fused, pieces, tensor, 1);
    }
}

TEST(ShardSpec, RebuildsTheUnshardedPartFromGatheredPieces) {
  ShardSpec spec = ShardSpec::split({257}, 0, {"tensor"});
  spec.splits[0].shards = {"data"};
  EXPECT_EQ(spec.room(0, at_rank(2, 2, 0)), 129);
  EXPECT_EQ(spec.local_shape(at_rank(2, 2, 0))[0], 65);  // the last piece has one row of padding
  EXPECT_EQ(spec.local_boxes(at_rank(2, 2, 3))[0].start[0], 129 + 65);
  EXPECT_EQ(spec.local_boxes(at_rank(2, 2, 3))[0].size[0], 128 - 65);
}

TEST(ShardSpec, HoldsWholeTensorsOnAllRanks) { expect_covered(ShardSpec::whole({5}), 2, 4, 8); }

TEST(ShardSpec, RefusesSegmentsThatDoNotAddUp) {
  EXPECT_THROW(ShardSpec::split({10}, 0, {"tensor"}, {{4}, {4}}), Error);
  EXPECT_THROW(ShardSpec::split({10}, 0, {"tensor"}, {{10, 4}}), Error);
}

}  // namespace
}  // namespace colossal::tensor::shard_spec_test
