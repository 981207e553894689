// A module that uses its parameters in a different order than it registers them.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/train/module_training.h"

namespace colossal::train::first_pass_test {
namespace {

constexpr int64_t kWidth = 6, kRows = 12;

at::Tensor points(int64_t step) {
  return at::arange(kRows * kWidth, at::kDouble).add(100 * step).mul(0.37).sin().view({kRows, kWidth});
}

/// Uses its layers in the reverse order of registration.
struct Reversed : torch::nn::Module {
  Reversed() {
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    calls = register_buffer("calls", at::zeros({}, at::kLong));
    const at::NoGradGuard no_grad;
    double phase = 0;
    for (at::Tensor& p : parameters())
      p.copy_(at::arange(p.numel(), at::kDouble).add(++phase).mul(1.7).sin().mul(0.4).view(p.sizes()));
  }
  at::Tensor forward(at::Tensor x) {
    calls.add_(1);
    for (int i = 3; i >= 0; --i) x = torch::tanh(layers[static_cast<size_t>(i)]->forward(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
  at::Tensor calls;
};

TEST(FirstPass, PacksParametersInOrderOfUse) {
  comm::run_ranks(2, [&](comm::World& world) {
    run::Config config;
    config.run.device = "cpu";
    config.parallel.data = 2;
    config.parallel.zero = 3;
    config.parallel.chunk_mib = 0.0003;  // one or two layers per chunk
    config.precision.mode = "fp64";
    config.training.batch_size = kRows;
    Reversed traced, plain;
    // Rank 1 uses another order: the order of rank 0 must win.
    const auto training = initialize(world, traced, config, [&] {
      if (world.rank() == 1) traced.layers[0]->forward(at::zeros({1, kWidth}));
      traced.forward(at::zeros({1, kWidth}));
    });
    EXPECT_EQ(traced.calls.item<int64_t>(), 0);
    std::vector<std::string> names;
    for (const nn::Parameter& p : training->parameters()) names.push_back(p.name);
    EXPECT_EQ(names, (std::vector<std::string>{"layer3.weight", "layer3.bias", "layer2.weight", "layer2.bias",
                                               "layer1.weight", "layer1.bias", "layer0.weight", "layer0.bias"}));
    const auto other = initialize(world, plain, config);
    EXPECT_EQ(other->parameters().begin().operator*().name, "layer0.weight");
    for (int step = 0; step < 3; ++step)
      for (const auto& [t, module] : {std::pair{training.get(), &traced}, std::pair{other.get(), &plain}}) {
        t->zero_grad();
        t->backward(module->forward(points(step).narrow(0, world.rank() * kRows / 2, kRows / 2)).square().mean());
        t->step();
      }
    for (const auto& p : traced.named_parameters())
      EXPECT_TRUE(at::equal(p.value().detach().clone(), plain.named_parameters()[p.key()].detach().clone())) << p.key();
  });
}

}  // namespace
}  // namespace colossal::train::first_pass_test
