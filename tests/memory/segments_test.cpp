// Parameters that are larger than a chunk: a rank's part of one is stored, loaded and updated in segments.
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "memory/foreign_module.h"
#include "support/counting_store.h"

namespace colossal::memory::segments_test {
namespace {

class Segments : public testing::TestWithParam<int> {};

// Weights of 256 elements with chunks of at most 50: a rank's part of one is cut at multiples of 32.
TEST_P(Segments, LoadsAndUpdatesOversizedParametersBySegment) {
  Foreign alone;
  alone.forward(input()).backward();
  comm::run_ranks(GetParam(), [&](comm::World& world) {
    const int64_t part = GetParam() == 3 ? 96 : 256 / GetParam();
    comm::Mesh mesh(world, {comm::Mesh::batch("data", world.size())});
    for (const bool is_offloaded : {false, true}) {
      Foreign module, changed;
      const auto parameters = adopt(module, mesh);
      const auto offload = std::make_shared<test::CountingStore>();
      ChunkOptions options = options_of(3, 50);
      if (is_offloaded) options.offload = offload;
      ChunkStore store(*parameters, mesh, options);
      parallel::GradientReducer reducer(store, {.sums = at::kDouble, .each_pass = true});
      for (const auto& chunk : store.chunks()) {
        const int64_t size = chunk->slots()[0].size;
        const std::span<const Shard> shards = store.shards_of(*chunk);
        ASSERT_EQ(shards.size(), size == 256 ? static_cast<size_t>(part / 32) : 1u);
        int64_t first = 0;
        for (size_t i = 0; i < shards.size(); ++i) {
          EXPECT_EQ(chunk->segments()[i].first, first);
          EXPECT_EQ(shards[i].length(), chunk->segments()[i].length);
          for (const Piece& piece : shards[i].pieces()) {
            EXPECT_EQ(piece.parameter, chunk->slots()[0].parameter);
            EXPECT_EQ(piece.part.first, chunk->part_begin() + first);
          }
          first += shards[i].length();
        }
        EXPECT_EQ(first, chunk->part_length());
      }
      offload->reset_counts();
      EXPECT_TRUE(at::equal(module.forward(input()), alone.forward(input())));
      if (is_offloaded) {
        EXPECT_GT(offload->borrows(), 0);
        EXPECT_GT(offload->prefetches(), 0) << "the next segment while one is copied";
      }
      if (is_offloaded && world.size() == 1) EXPECT_EQ(offload->peak_borrowed, 32);
      reducer.zero();
      reducer.begin(true);
      (module.forward(input()) / world.size()).backward();
      reducer.finish();
      store.end_pass();
      const double rate = 0.125;
      for_leases(store.shards(), {.values = Access::Write, .gradients = Access::Read},
                 [&](size_t, Resident& shard) { shard.values.sub_(shard.gradients, rate); });
      store.updated();
      const at::NoGradGuard no_grad;
      for (auto& p : changed.named_parameters()) {
        const at::Tensor gradient = alone.named_parameters()[p.key()].grad();
        if (gradient.defined()) p.value().sub_(gradient, rate);
        EXPECT_TRUE(at::allclose(module.named_parameters()[p.key()], p.value(), 1e-12, 1e-12)) << p.key();
      }
      EXPECT_EQ(offload->borrowed(), 0);
    }
  });
}

// The segments of a part that every rank holds are slices of it.
TEST_P(Segments, SharesSegmentsOfPermanentChunks) {
  for (const int zero : {0, 1, 2})
    comm::run_ranks(GetParam(), [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", world.size())});
      Foreign module, alone;
      const auto parameters = adopt(module, mesh);
      ChunkStore store(*parameters, mesh, options_of(zero, 50));
      EXPECT_GT(store.shards().size(), store.chunks().size());
      for (Shard& shard : store.shards()) shard.lease({.values = Access::Write})->values.mul_(2);
      store.updated();
      for (const auto& p : module.named_parameters())
        EXPECT_TRUE(at::equal(p.value(), 2 * alone.named_parameters()[p.key()])) << "zero " << zero << ", " << p.key();
    });
}
INSTANTIATE_TEST_SUITE_P(Ranks, Segments, testing::Values(1, 2, 3));

}  // namespace
}  // namespace colossal::memory::segments_test
