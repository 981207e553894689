// Which chunks are whole is a policy: any policy gives the same numbers, and is asked once for every change of chunk.
#include "colossal/memory/placement.h"

#include <gtest/gtest.h>
#include <torch/nn.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"

namespace colossal::memory::placement_test {
namespace {

using Numbers = std::vector<size_t>;

TEST(GatherNext, KeepsTheOneInUseAndTheNext) {
  GatherNext policy;
  Timeline timeline;
  for (const size_t chunk : {0, 1, 2}) timeline.used(chunk);
  Plan plan = policy.before_use(timeline, {0, 1});  // the first pass: nothing is foretold
  EXPECT_EQ(plan.release, Numbers{0}) << "the one before stays";
  EXPECT_EQ(plan.gather, Numbers{});
  timeline.end_pass();
  timeline.used(0);
  timeline.used(1);
  plan = policy.before_use(timeline, {0, 1});
  EXPECT_EQ(plan.release, Numbers{0});
  EXPECT_EQ(plan.gather, Numbers{2});
  EXPECT_EQ(GatherNext(false).before_use(timeline, {0, 1}).release, Numbers{});
}

/// Releases all that it may at every use.
struct ReleaseAll final : Placement {
  Plan before_use(const Timeline&, const Numbers& gathered) override { return {gathered, {}}; }
};

/// Releases nothing, gathers nothing early.
struct KeepAll final : Placement {
  Plan before_use(const Timeline&, const Numbers&) override { return {}; }
};

/// Gathers two ahead, and of what is there releases what is needed last.
struct TwoAhead final : Placement {
  Plan before_use(const Timeline& timeline, const Numbers& gathered) override {
    Plan plan;
    for (const size_t steps : {1, 2})
      if (const auto chunk = timeline.ahead(steps)) plan.gather.push_back(*chunk);
    for (const size_t chunk : gathered)
      if (chunk != timeline.current() && timeline.until(chunk).value_or(99) > 2) plan.release.push_back(chunk);
    return plan;
  }
};

struct Outcome {
  std::vector<at::Tensor> gradients;
  ChunkStore::Counts counts;
};

/// Two passes of five layers whose parameters are shared by two replicas.
Outcome outcome_of(const std::function<std::unique_ptr<Placement>()>& policy) {
  Outcome outcome;
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    nn::Parameters parameters(mesh.place(), {.dtype = at::kDouble, .seed = 3});
    std::vector<nn::Parameter*> layers;
    for (int i = 0; i < 5; ++i)
      layers.push_back(
          &parameters.add("layer" + std::to_string(i), tensor::ShardSpec::whole({8, 8}), nn::Init::normal(0.3), true));
    ChunkOptions options;
    options.sharing = Sharing::of_stage(3);
    options.capacity = 64;
    ChunkStore store(parameters, mesh, options, policy());
    for (int pass = 0; pass < 2; ++pass) {
      at::Tensor x = at::linspace(-1, 1, 24, at::kDouble).view({3, 8}).requires_grad_();
      at::Tensor y = x;
      for (nn::Parameter* p : layers) y = at::tanh(at::linear(y, p->value));
      y.square().sum().backward();
      store.end_pass();
      EXPECT_EQ(store.counts().gathered, 0) << "the pass is over";
      if (world.rank() == 0) outcome.gradients.push_back(x.grad().clone());
    }
    if (world.rank() == 0) outcome.counts = store.counts();
  });
  return outcome;
}

TEST(Placement, NoPolicyChangesANumber) {
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
  const Outcome ahead = outcome_of([] { return std::make_unique<TwoAhead>(); });
  expect_same(ahead, "two ahead");
  EXPECT_EQ(ahead.counts.peak_gathered, 3 * bytes) << "what is in use and two more";
}

}  // namespace
}  // namespace colossal::memory::placement_test
