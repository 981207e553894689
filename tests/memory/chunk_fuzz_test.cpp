// Layers in random order, different in every pass, with an offload store that has little room. Parameters, gradients
// and values must equal a module that is entirely in memory.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <atomic>
#include <random>

#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "support/temporary_folder.h"

namespace colossal::memory::chunk_fuzz_test {
namespace {

constexpr int64_t kWidth = 24;  // an fp64 weight takes more than a block of the disk

struct AnyOrder : torch::nn::Module {
  AnyOrder() {
    for (int i = 0; i < 6; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    double phase = 0;
    for (at::Tensor& p : parameters())
      p.copy_(at::arange(p.numel(), at::kDouble).add(++phase).mul(1.7).sin().mul(0.3).view(p.sizes()));
  }
  at::Tensor forward(const std::vector<size_t>& order) {
    at::Tensor x = at::linspace(-1, 1, 3 * kWidth, at::kDouble).view({3, kWidth});
    for (const size_t i : order) x = torch::tanh(layers[i]->forward(x));
    return x.square().sum();
  }
  std::vector<torch::nn::Linear> layers;
};

/// Draws the next operation, the same one on all ranks.
struct Draw {
  explicit Draw(unsigned seed) : random(seed) {}
  std::vector<size_t> order() {
    std::vector<size_t> layers(1 + random() % 7);
    for (size_t& layer : layers) layer = random() % 6;
    return layers;
  }
  std::mt19937 random;
};

/// Updates the reference module, which is entirely in memory.
void update(AnyOrder& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& p : module.parameters())
    if (p.grad().defined()) p.sub_(p.grad() * 0.05), p.mutable_grad().reset();
}

void update(ChunkStore& store) {
  for_leases(store.shards(), {.values = Access::Write, .gradients = Access::Read},
             [](size_t, Resident& shard) { shard.values.sub_(shard.gradients * 0.05); });
  store.updated();
}

/// Runs steps of one or two passes in random order, with forward-only passes in between.
void expect_equal_course(comm::World& world, unsigned seed, TieredStore& offload, ChunkStore& store, AnyOrder& module) {
  AnyOrder alone;
  parallel::GradientReducer reducer(store, {.sums = at::kDouble, .each_pass = true});
  Draw draw(seed);
  for (int step = 0; step < 6; ++step) {
    const bool repeats = draw.random() % 2 == 0;  // the prediction is right in some steps
    if (repeats) draw.random.seed(seed);
    if (draw.random() % 3 == 0) {
      const at::NoGradGuard no_grad;
      const auto order = draw.order();
      EXPECT_TRUE(at::allclose(module.forward(order), alone.forward(order), 1e-11, 1e-11));
      store.end_pass();
    }
    offload.begin_step();
    reducer.zero();
    const int passes = 1 + static_cast<int>(draw.random() % 2);
    for (int pass = 0; pass < passes; ++pass) {
      const auto order = draw.order();
      const at::Tensor loss = module.forward(order), want = alone.forward(order);
      ASSERT_TRUE(at::allclose(loss, want, 1e-11, 1e-11)) << "step " << step;
      want.backward();
      reducer.begin(pass + 1 == passes);
      (loss / world.size()).backward();
      reducer.finish();
      store.end_pass();
    }
    update(store), update(alone);
    offload.end_step();
  }
  for (const auto& p : module.named_parameters())
    EXPECT_TRUE(at::allclose(p.value(), alone.named_parameters()[p.key()], 1e-11, 1e-11)) << p.key();
}

TEST(ChunkFuzz, MatchesAModuleInMemoryForRandomLayerOrders) {
  std::atomic<int64_t> reads = 0;
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int ranks = seed % 3 == 0 ? 2 : 1;
    comm::run_ranks(ranks, [&](comm::World& world) {
      const test::TemporaryFolder folder;
      const auto names = eviction_policy_names();
      const auto offload = std::make_shared<TieredStore>(
          TieredStore::Options{.host_bytes = (5 + seed % 4 * 3) * kBlock,
                               .disk = std::make_shared<DiskSpace>(folder.path()),
                               .eviction_policy = make_eviction_policy(names[seed % names.size()])});
      comm::Mesh mesh(world, {comm::Mesh::batch("data", world.size())});
      AnyOrder module;
      nn::Parameters parameters(mesh.coordinates(), nn::Parameters::Options{.dtype = at::kDouble});
      for (const auto& p : module.named_parameters()) parameters.adopt(p.key(), p.value(), true);
      ChunkOptions options;
      options.sharing = Sharing::of_stage(3);
      options.sharers = world.size();
      options.capacity = kWidth * (kWidth + 1);
      options.offload = offload;
      ChunkStore store(parameters, mesh, options);
      expect_equal_course(world, seed, *offload, store, module);
      EXPECT_LE(offload->counts().peak_host_bytes, (5 + seed % 4 * 3) * kBlock);
      reads += offload->counts().reads;
    });
  }
  EXPECT_GT(reads, 200) << "or this tested nothing";
}

}  // namespace
}  // namespace colossal::memory::chunk_fuzz_test
