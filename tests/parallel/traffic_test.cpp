// What each rank sends in a training step equals the published formula, element for element, and the number of calls too.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/train/engine.h"
#include "support/parity.h"

namespace colossal::test {
namespace {

using comm::Phase;

data::Batch batch_of(int64_t rows, int64_t sequence) {
  const auto ids = at::TensorOptions().dtype(at::kLong);
  return {at::ones({rows, sequence}, ids), at::ones({rows, sequence}, ids),
          at::arange(sequence, ids).expand({rows, sequence}).contiguous(), at::Tensor()};
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

// Per layer 2 all_reduces of B*S*H each way: 8 (p-1)/p * B*S*H. Outside the layers: the embedding, the head's dHidden, which is computed along with
// the loss in forward, and the loss's 3 B*S.
TEST_P(TensorTraffic, EqualsMegatronsFormula) {
  const int p = GetParam();
  const int64_t rows = 2, sequence = 8;
  for (const models::ModelShape& shape : {tiny_gpt2(), tiny_llama()}) {
    if (shape.kv_heads < p) continue;  // shared kv heads add a sum of their weight gradients: the test below
    comm::run_ranks(p, [&](comm::World& world) {
      train::Config config;
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

TEST(TensorTraffic, SharedKvHeadsAddOneSumOfTheirRowsALayer) {
  models::ModelShape shape = tiny_llama();  // 2 kv heads on 4 ranks: pairs of ranks share one
  comm::run_ranks(4, [&](comm::World& world) {
    train::Config config;
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

TEST_P(DataTraffic, IsTwiceTheParametersTimesShareOfPeers) {
  const int n = GetParam();
  comm::run_ranks(n, [&](comm::World& world) {
    train::Config config;
    config.parallel.data = n;
    config.parallel.bucket_mib = 0.01;
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

TEST(SingleRank, MakesNoCallAtAll) {
  comm::run_ranks(1, [&](comm::World& world) {
    train::Config config;
    config.training.batch_size = 2;
    auto engine = train::initialize(world, config, tiny_llama());
    engine->zero_grad();
    engine->train_step(batch_of(2, 8));
    engine->step();
    EXPECT_EQ(world.traffic().total().calls, 0);
  });
}

}  // namespace
}  // namespace colossal::test
