// AdamW over shards equals the formula of the paper, parameter by parameter, and decays what is to decay.
#include "colossal/optim/adamw.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>

#include "optim/shards.h"

namespace colossal::optim {
namespace {

TEST(AdamW, FollowsThePapersFormula) {
  nn::Parameters parameters({}, {at::kDouble, at::kCPU, 1});
  parameters.add("matrix", tensor::ShardSpec::whole({3, 5}), nn::Init::normal(1), true);
  parameters.add("bias", tensor::ShardSpec::whole({5}), nn::Init::normal(1), false);
  std::vector<memory::Shard> shards{make_shard(parameters)};
  const memory::Shard& shard = shards[0];
  std::vector<at::Tensor> want, m, v;
  for (const nn::Parameter& p : parameters) {
    want.push_back(p.value.detach().view({-1}).clone());
    m.push_back(at::zeros_like(want.back()));
    v.push_back(at::zeros_like(want.back()));
  }
  OptimizerConfig config;
  config.betas = {0.9, 0.99};
  config.weight_decay = 0.2;
  AdamW optimizer(config, shards);
  auto generator = at::detail::createCPUGenerator(2);
  for (int64_t t = 1; t <= 5; ++t) {
    const double rate = 0.1 / static_cast<double>(t), scale = 0.5;
    size_t i = 0;
    for (const memory::Piece& piece : shard.pieces) {
      const at::Tensor g = at::randn({piece.part.size}, generator, at::kDouble) * scale;
      of_piece(shard.gradients, piece).copy_(g / scale);
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.99 * v[i] + 0.01 * g * g;
      const at::Tensor m_hat = m[i] / (1 - std::pow(0.9, t)), v_hat = v[i] / (1 - std::pow(0.99, t));
      want[i] = want[i] - rate * (m_hat / (v_hat.sqrt() + config.epsilon) + (piece.parameter->decay ? 0.2 : 0.0) * want[i]);
      ++i;
    }
    optimizer.step(t, rate, scale);
  }
  size_t i = 0;
  for (const memory::Piece& piece : shard.pieces)
    EXPECT_TRUE(at::allclose(of_piece(shard.values, piece), want[i++], 1e-12, 1e-13)) << piece.parameter->name;
}

TEST(AdamW, StateNamesEveryMomentOfEveryParameter) {
  nn::Parameters parameters({}, {});
  parameters.add("a", tensor::ShardSpec::whole({2, 2}), nn::Init::ones(), true);
  parameters.add("b", tensor::ShardSpec::whole({3}), nn::Init::ones(), false);
  std::vector<memory::Shard> shards{make_shard(parameters)};
  AdamW optimizer({}, shards);
  const auto state = optimizer.state();
  ASSERT_EQ(state.size(), 4u);
  EXPECT_EQ(state[2].name, "exp_avg.b");
  for (const StateTensor& t : state) EXPECT_EQ(t.value.numel(), t.spec.numel());
}

}  // namespace
}  // namespace colossal::optim
