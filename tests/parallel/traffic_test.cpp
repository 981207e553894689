// The traffic of each rank in a training step equals the published formula, element for element, and the number of
// calls does, too.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/engine.h"
#include "support/parity.h"

namespace colossal::test::traffic_test {
namespace {

using comm::Phase;

tensor::Batch batch_of(int64_t rows, int64_t sequence) {
  const auto ids = at::TensorOptions().dtype(at::kLong);
  return data::text_batch(at::ones({rows, sequence}, ids), at::ones({rows, sequence}, ids),
                          at::arange(sequence, ids).expand({rows, sequence}).contiguous());
}

struct Sent {
  double forward, backward;
  int64_t forward_calls, backward_calls;
};

Sent sent(const comm::Traffic& traffic, const std::string& group) {
  const auto f = traffic.total(group, "", Phase::Forward), b = traffic.total(group, "", Phase::Backward);
  return {f.elements, b.elements, f.calls, b.calls};
}

class TensorTraffic : public testing::TestWithParam<int> {};

// Each layer makes 2 all_reduces of B*S*H each way: 8 (p-1)/p * B*S*H. Outside of the layers: the embedding, the
// head's dHidden, which is computed together with the loss in forward, and the loss's 3 B*S.
TEST_P(TensorTraffic, EqualsMegatronsFormula) {
  const int p = GetParam();
  const int64_t rows = 2, sequence = 8;
  for (const models::ModelShape& shape : {tiny_gpt2(), tiny_llama()}) {
    if (shape.kv_heads < p) continue;  // shared kv heads add a sum of their weight gradients: the test below
    comm::run_ranks(p, [&](comm::World& world) {
      run::Config config;
      config.parallel.tensor.size = p;
      config.training.batch_size = rows;
      auto engine = train::initialize(world, config, shape);
      world.traffic().reset();
      engine->zero_grad();
      engine->train_step(batch_of(rows, sequence));
      const double unit = 2.0 * (p - 1) / p, hidden = static_cast<double>(rows * sequence * shape.hidden);
      const Sent s = sent(world.traffic(), "tensor");
      EXPECT_DOUBLE_EQ(s.forward, unit * (2 * shape.layers * hidden + 2 * hidden + 3.0 * rows * sequence));
      EXPECT_DOUBLE_EQ(s.backward, unit * 2 * shape.layers * hidden);
      EXPECT_EQ(s.forward_calls, 2 * shape.layers + 1 + 3);
      EXPECT_EQ(s.backward_calls, 2 * shape.layers);
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, TensorTraffic, testing::Values(2, 4));

TEST(TensorTraffic, AddsOneSumPerLayerForSharedKvHeads) {
  models::ModelShape shape = tiny_llama();  // 2 kv heads on 4 ranks: pairs of ranks share one
  comm::run_ranks(4, [&](comm::World& world) {
    run::Config config;
    config.parallel.tensor.size = 4;
    config.training.batch_size = 2;
    auto engine = train::initialize(world, config, shape);
    world.traffic().reset();
    engine->zero_grad();
    engine->train_step(batch_of(2, 8));
    const auto shared = world.traffic().total("tensor/2", "all_reduce", Phase::Backward);
    EXPECT_EQ(shared.calls, shape.layers);
    EXPECT_DOUBLE_EQ(shared.elements, 2.0 * 1 / 2 * shape.layers * 2 * shape.head_dim * shape.hidden);
  });
}

class DataTraffic : public testing::TestWithParam<int> {};

TEST_P(DataTraffic, EqualsTheFormula) {
  const int n = GetParam();
  comm::run_ranks(n, [&](comm::World& world) {
    run::Config config;
    config.parallel.data = n;
    config.parallel.chunk_mib = 0.01;
    config.training.batch_size = 2 * n * 2;
    config.training.accumulate = 2;
    auto engine = train::initialize(world, config, tiny_gpt2());
    world.traffic().reset();
    engine->zero_grad();
    engine->train_step(batch_of(4, 8));
    const auto total = world.traffic().total("data", "all_reduce", Phase::Backward);
    EXPECT_DOUBLE_EQ(total.elements, 2.0 * (n - 1) / n * static_cast<double>(engine->parameters().numel()));
    EXPECT_GT(total.calls, 1);  // once a bucket, and no reduction between the micro-batches
    EXPECT_EQ(world.traffic().total("data", "", Phase::Forward).calls, 0);
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, DataTraffic, testing::Values(2, 4));

class ZeroTraffic : public testing::TestWithParam<std::tuple<int, int>> {};

// Per step and rank, with P elements including padding: gradients make a reduce_scatter P (N-1)/N. Parameters are
// gathered once a step (zero 1, 2), or forward and backward (zero 3). Backward saves two chunks: the head's, whose
// gradients the loss computes in forward, and the previous one, which is predicted and stays resident.
TEST_P(ZeroTraffic, EqualsTheFormula) {
  const auto [zero, n] = GetParam();
  comm::run_ranks(n, [&, zero = zero, n = n](comm::World& world) {
    run::Config config;
    config.parallel.data = n;
    config.parallel.zero = zero;
    config.parallel.chunk_mib = 0.01;
    config.training.batch_size = 2 * n;
    models::ModelShape shape = tiny_llama();
    shape.layers = 4;
    auto engine = train::initialize(world, config, shape);
    const memory::ChunkStore& store = engine->store();
    const double p = static_cast<double>(engine->parameters().numel() + store.padding()),
                 share = static_cast<double>(n - 1) / n;
    EXPECT_LT(store.padding(), 16 * n * static_cast<int64_t>(store.chunks().size()));
    const double turn =
        static_cast<double>(store.chunks().back()->length() + store.chunks()[store.chunks().size() - 2]->length());
    for (int step = 0; step < 3; ++step) {
      world.traffic().reset();
      engine->zero_grad();
      engine->train_step(batch_of(2, 8));
      engine->step();
      const auto of = [&](const char* collective, Phase phase) {
        return world.traffic().total("data", collective, phase).elements;
      };
      EXPECT_DOUBLE_EQ(of("reduce_scatter", Phase::Backward), p * share);
      EXPECT_DOUBLE_EQ(of("all_gather", Phase::Optimizer), zero < 3 ? p * share : 0) << "step " << step;
      EXPECT_DOUBLE_EQ(of("all_gather", Phase::Forward), zero == 3 ? p * share : 0) << "step " << step;
      EXPECT_DOUBLE_EQ(of("all_gather", Phase::Backward), zero == 3 ? (p - turn) * share : 0) << "step " << step;
      EXPECT_EQ(of("all_reduce", Phase::Backward), 0);
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Stages, ZeroTraffic, testing::Combine(testing::Values(1, 2, 3), testing::Values(2, 3, 4)));

// bf16 with fp32 master weights and two moments: 16 P, 4 P + 12 P / N, 2 P + 14 P / N, 16 P / N, with padding counted
// as parameters.
TEST(ZeroBytes, EqualsTheFormula) {
  for (const int n : {1, 2, 4})
    for (const int zero : {0, 1, 2, 3})
      comm::run_ranks(n, [&](comm::World& world) {
        run::Config config;
        config.parallel.data = n;
        config.parallel.zero = zero;
        config.parallel.chunk_mib = 0.01;
        config.precision.mode = "bf16";
        config.training.batch_size = n;
        auto engine = train::initialize(world, config, tiny_gpt2());
        engine->zero_grad();
        engine->train_step(batch_of(1, 8));
        const int64_t p = engine->parameters().numel() + engine->store().padding(), share = zero == 0 ? 1 : n;
        std::map<const void*, int64_t> bytes;  // bytes by storage, so that views count once
        const auto count = [&](const at::Tensor& t) {
          if (t.defined()) bytes[t.storage().unsafeGetStorageImpl()] = static_cast<int64_t>(t.storage().nbytes());
        };
        const auto total = [&] {
          int64_t sum = 0;
          for (const auto& [storage, size] : bytes) sum += size;
          bytes.clear();
          return sum;
        };
        for (const auto& chunk : engine->store().chunks()) {
          for (const memory::Segment& segment : chunk->segments()) count(segment.offloaded->borrow());
          count(chunk->whole());
        }
        EXPECT_EQ(total(), zero == 3 ? 2 * p / share : 2 * p);
        for (const memory::Shard& shard : engine->store().shards()) count(shard.lease()->gradients);
        EXPECT_EQ(total(), zero >= 2 ? 2 * p / share : 2 * p);
        for (const memory::Shard& shard : engine->store().shards()) count(shard.lease()->values);
        EXPECT_EQ(total(), 4 * p / share);
        for (const auto& t : engine->state().tensors)
          if (t.name.starts_with("optimizer.")) count(t.value.read().value);
        EXPECT_EQ(total(), 8 * p / share);
        for (const nn::Parameter& parameter : engine->parameters())
          if (zero >= 2) EXPECT_FALSE(parameter.value.grad().defined()) << parameter.name;
      });
}

TEST(SingleRank, MakesNoCallAtAll) {
  comm::run_ranks(1, [&](comm::World& world) {
    run::Config config;
    config.training.batch_size = 2;
    auto engine = train::initialize(world, config, tiny_llama());
    engine->zero_grad();
    engine->train_step(batch_of(2, 8));
    engine->step();
    EXPECT_EQ(world.traffic().total().calls, 0);
  });
}

}  // namespace
}  // namespace colossal::test::traffic_test
