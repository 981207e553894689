// AdamW over buckets equals the formula of the paper, parameter by parameter, and decays what is to decay.
#include "colossal/optim/adamw.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>

namespace colossal::optim {
namespace {

TEST(AdamW, FollowsThePapersFormula) {
  nn::Parameters parameters({}, {at::kDouble, at::kCPU, 1});
  parameters.add("matrix", tensor::ShardSpec::whole({3, 5}), nn::Init::normal(1), true);
  parameters.add("bias", tensor::ShardSpec::whole({5}), nn::Init::normal(1), false);
  std::vector<at::Tensor> want, m, v;
  for (const nn::Parameter& p : parameters) {
    want.push_back(p.value.detach().clone());
    m.push_back(at::zeros_like(want.back()));
    v.push_back(at::zeros_like(want.back()));
  }
  nn::FlatParameters flat(parameters, 1 << 20);
  OptimizerConfig config;
  config.betas = {0.9, 0.99};
  config.weight_decay = 0.2;
  AdamW optimizer(config, flat);
  auto generator = at::detail::createCPUGenerator(2);
  for (int64_t t = 1; t <= 5; ++t) {
    const double rate = 0.1 / static_cast<double>(t), scale = 0.5;
    size_t i = 0;
    for (const nn::Parameter& p : parameters) {
      p.value.grad().copy_(at::randn(p.value.sizes(), generator, at::kDouble));
      const at::Tensor g = p.value.grad() * scale;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.99 * v[i] + 0.01 * g * g;
      const at::Tensor m_hat = m[i] / (1 - std::pow(0.9, t)), v_hat = v[i] / (1 - std::pow(0.99, t));
      want[i] = want[i] - rate * (m_hat / (v_hat.sqrt() + config.epsilon) + (p.decay ? 0.2 : 0.0) * want[i]);
      ++i;
    }
    optimizer.step(t, rate, scale);
  }
  size_t i = 0;
  for (const nn::Parameter& p : parameters) EXPECT_TRUE(at::allclose(p.value.detach(), want[i++], 1e-12, 1e-13)) << p.name;
}

TEST(AdamW, StateNamesEveryMomentOfEveryParameter) {
  nn::Parameters parameters({}, {});
  parameters.add("a", tensor::ShardSpec::whole({2, 2}), nn::Init::ones(), true);
  parameters.add("b", tensor::ShardSpec::whole({3}), nn::Init::ones(), false);
  nn::FlatParameters flat(parameters, 1);
  EXPECT_EQ(flat.buckets().size(), 2u);
  AdamW optimizer({}, flat);
  EXPECT_EQ(optimizer.state().size(), 4u);
  for (const StateTensor& t : optimizer.state()) EXPECT_EQ(t.value.sizes(), t.parameter->value.sizes());
}

}  // namespace
}  // namespace colossal::optim
