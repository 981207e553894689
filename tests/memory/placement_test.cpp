// Placement policies: any policy gives the same values, and is called once for every change of chunk.
#include "colossal/memory/placement.h"

#include <gtest/gtest.h>
#include <torch/nn.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"

namespace colossal::memory::placement_test {
namespace {

using Numbers = std::vector<size_t>;

TEST(GatherNext, KeepsTheChunkInUseAndTheNext) {
  GatherNext policy;
  Timeline timeline;
  const std::vector<int64_t> bytes(3, 1);
  const Numbers gathered{0, 1};
  for (const size_t chunk : {0, 1, 2}) timeline.used(chunk);
  ChunkMoves moves = policy.before_use({timeline, gathered, bytes});  // the first pass has no predictions
  EXPECT_EQ(moves.release, Numbers{0}) << "the one before stays";
  EXPECT_EQ(moves.gather, Numbers{});
  timeline.end_pass();
  timeline.used(0);
  timeline.used(1);
  moves = policy.before_use({timeline, gathered, bytes});
  EXPECT_EQ(moves.release, Numbers{0});
  EXPECT_EQ(moves.gather, Numbers{2});
  EXPECT_EQ(policy.after_pass({timeline, gathered, bytes}), gathered);
}

TEST(GatherWithin, ReleasesTheFarthestUsesUntilTheOthersFit) {
  Timeline timeline;
  const std::vector<int64_t> bytes{10, 20, 30, 40};
  const Numbers gathered{0, 1, 2};
  const auto released = [&](int64_t budget) {
    return GatherWithin(budget).before_use({timeline, gathered, bytes}).release;
  };
  // No predictions: the least recently used one is released.
  for (const size_t chunk : {0, 2, 1, 3}) timeline.used(chunk);
  EXPECT_EQ(released(100), Numbers{});
  EXPECT_EQ(released(99), Numbers{0});
  EXPECT_EQ(released(89), (Numbers{0, 2}));
  EXPECT_EQ(released(1), (Numbers{0, 2, 1})) << "the one in use comes whatever the budget";
  for (const size_t chunk : {1, 0}) timeline.used(chunk);
  timeline.end_pass();  // 0 2 1 3 1 0
  for (const size_t chunk : {0, 2, 1, 3}) timeline.used(chunk);
  EXPECT_EQ(GatherWithin(99).before_use({timeline, gathered, bytes}).gather, Numbers{1});
  EXPECT_EQ(released(99), Numbers{2}) << "of the next pass";
  EXPECT_EQ(released(1), (Numbers{2, 0})) << "the next one stays";
  EXPECT_EQ(GatherWithin(1).after_pass({timeline, gathered, bytes}), Numbers{});
}

/// Releases all chunks that it may at every use.
struct ReleaseAll final : Placement {
  ChunkMoves before_use(const Situation& now) override { return {now.gathered, {}}; }
};

/// Releases no chunk, and gathers none early.
struct KeepAll final : Placement {
  ChunkMoves before_use(const Situation&) override { return {}; }
};

struct Outcome {
  std::vector<at::Tensor> gradients;
  ChunkStore::Counts counts;
};

/// Runs passes of five layers whose parameters two replicas share. The parameters change after the last but one pass.
Outcome outcome_of(const std::function<std::unique_ptr<Placement>()>& policy, int passes = 2) {
  Outcome outcome;
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble, .seed = 3});
    std::vector<nn::Parameter*> layers;
    for (int i = 0; i < 5; ++i)
      layers.push_back(
          &parameters.add("layer" + std::to_string(i), tensor::ShardSpec::whole({8, 8}), nn::Init::normal(0.3), true));
    ChunkOptions options;
    options.sharing = Sharing::of_stage(3);
    options.capacity = 64;
    ChunkStore store(parameters, mesh, options, policy());
    for (int pass = 0; pass < passes; ++pass) {
      at::Tensor x = at::linspace(-1, 1, 24, at::kDouble).view({3, 8}).requires_grad_();
      at::Tensor y = x;
      for (nn::Parameter* p : layers) y = at::tanh(at::linear(y, p->value));
      y.square().sum().backward();
      store.end_pass();
      if (pass == passes - 2) {
        for (Shard& shard : store.shards()) shard.lease()->values.mul_(1.5);
        store.updated();
        EXPECT_EQ(store.counts().gathered, 0) << "parameters have changed";
      }
      if (world.rank() == 0) outcome.gradients.push_back(x.grad().clone());
    }
    if (world.rank() == 0) outcome.counts = store.counts();
  });
  return outcome;
}

TEST(Placement, ChangesNoValues) {
  const Outcome want = outcome_of([] { return nullptr; });
  const int64_t bytes = 64 * 8;
  EXPECT_EQ(want.counts.peak_gathered, 2 * bytes);
  EXPECT_EQ(want.counts.gathers, 2 * (5 + 3)) << "the last two layers are still there when backward begins";
  const auto expect_same = [&](const Outcome& got, const char* what) {
    for (size_t i = 0; i < want.gradients.size(); ++i)
      EXPECT_TRUE(at::equal(got.gradients[i], want.gradients[i])) << what << ", pass " << i;
  };
  const Outcome none = outcome_of([] { return std::make_unique<ReleaseAll>(); });
  expect_same(none, "release all");
  EXPECT_EQ(none.counts.peak_gathered, bytes) << "what is in use alone";
  const Outcome all = outcome_of([] { return std::make_unique<KeepAll>(); });
  expect_same(all, "keep all");
  EXPECT_EQ(all.counts.gathers, 2 * 5) << "once a pass";
  EXPECT_EQ(all.counts.peak_gathered, 5 * bytes);
  const Outcome within = outcome_of([] { return std::make_unique<GatherWithin>(1); });
  expect_same(within, "a budget of nothing");
  EXPECT_EQ(within.counts.peak_gathered, 2 * bytes) << "what is in use and the next";
}

// Passes run up and down through n layers. A policy that holds c of them and releases the one needed last finds c
// gathered at each turn. It gathers n - c in each direction, and all n after a change of parameters.
TEST(Placement, GathersLessWithALargerBudget) {
  const int64_t n = 5, bytes = 64 * 8;
  const Outcome want = outcome_of([] { return nullptr; }, 5);
  for (int64_t c = 2; c <= n; ++c) {
    const Outcome got = outcome_of([&] { return std::make_unique<GatherWithin>(c * bytes); }, 5);
    for (size_t i = 0; i < want.gradients.size(); ++i)
      EXPECT_TRUE(at::equal(got.gradients[i], want.gradients[i])) << c << " chunks, pass " << i;
    EXPECT_EQ(got.counts.peak_gathered, c * bytes);
    EXPECT_EQ(got.counts.gathers, 2 * (n + n - c) + 3 * 2 * (n - c)) << c << " chunks";
  }
}

}  // namespace
}  // namespace colossal::memory::placement_test
