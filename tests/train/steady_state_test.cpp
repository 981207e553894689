// A training step in its steady state allocates no memory from the system, and a long run does not grow.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/memory/host_memory.h"
#include "colossal/models/registry.h"
#include "colossal/train/engine.h"

namespace colossal::train::steady_state_test {
namespace {

TEST(SteadyState, AllocatesNoSystemMemory) {
  memory::keep_host_memory();
  comm::run_ranks(1, [](comm::World& world) {
    run::Config config;
    config.training.batch_size = 8;
    config.training.steps = 1000;
    const models::ModelShape shape = models::built_in().resolve({.name = "gpt2-tiny", .layers = 2});
    auto engine = initialize(world, config, shape);
    const auto ids = at::TensorOptions().dtype(at::kLong);
    const at::Tensor tokens = at::arange(8 * 128, ids).remainder(257).view({8, 128});
    const tensor::Batch batch = data::text_batch(tokens, tokens, at::arange(128, ids).expand({8, 128}).contiguous());
    auto steps = [&](int count) {
      for (int i = 0; i < count; ++i) {
        engine->zero_grad();
        engine->train_step(batch);
        engine->step();
      }
    };
    steps(5);
    const memory::HostMemory warm = memory::host_memory();
    EXPECT_GT(warm.system_requests, 0u);  // the cache is used: activations of this size are large blocks
    steps(100);
    const memory::HostMemory after = memory::host_memory();
    EXPECT_EQ(after.system_requests, warm.system_requests);
    EXPECT_EQ(after.reserved_bytes, warm.reserved_bytes);
    EXPECT_EQ(after.used_bytes, warm.used_bytes);
  });
}

/// Returns the resident bytes of this process, without file pages.
int64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "RssAnon:" && status >> kib) return kib * 1024;
  }
  return 0;
}

TEST(SteadyState, KeepsMemoryForAThousandSteps) {
  comm::run_ranks(2, [](comm::World& world) {
    run::Config config;
    config.parallel.data = 2;
    config.training.batch_size = 4;
    config.training.steps = 2000;
    const models::ModelShape shape =
        models::built_in().resolve({.name = "gpt2-tiny", .hidden = 32, .layers = 1, .heads = 2});
    auto engine = initialize(world, config, shape);
    const auto ids = at::TensorOptions().dtype(at::kLong);
    const at::Tensor tokens = at::arange(2 * 32, ids).remainder(257).view({2, 32});
    const tensor::Batch batch = data::text_batch(tokens, tokens, at::arange(32, ids).expand({2, 32}).contiguous());
    auto steps = [&](int count) {
      for (int i = 0; i < count; ++i) {
        engine->zero_grad();
        engine->train_step(batch);
        engine->step();
      }
    };
    steps(200);
    const int64_t warm = resident_bytes();
    steps(1000);
    // A leak of one small block per step (a node of the graph, a message) would be several hundred bytes each time.
    // Over 1,000 steps and two ranks it exceeds this slack, which covers the variation of allocators.
    if (world.rank() == 0) EXPECT_LT(resident_bytes() - warm, 512 * 1024);
  });
}

}  // namespace
}  // namespace colossal::train::steady_state_test
