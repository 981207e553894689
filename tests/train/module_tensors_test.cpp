// Training of a module that is given by its named tensors, as a binding of another language gives them.
#include "colossal/train/module_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/train/module_training.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::train::module_tensors_test {
namespace {

using testing::ElementsAre;

constexpr int64_t kWidth = 6, kRows = 12, kWords = 5;

/// A table, whose weight the last product uses again, a matrix, and a buffer that forward changes.
struct Words : torch::nn::Module {
  explicit Words(double phase = 0) {
    table = register_module("table", torch::nn::Embedding(kWords, kWidth));
    layer = register_module("layer", torch::nn::Linear(kWidth, kWidth));
    head = register_parameter("head", table->weight);
    mean = register_buffer("mean", at::zeros({kWidth}));
    same = register_buffer("same", mean);
    const at::NoGradGuard no_grad;  // no random generator, because modules of several ranks are made concurrently
    for (at::Tensor& p : parameters())
      p.copy_(at::arange(p.numel(), at::kDouble).add(++phase).mul(1.7).sin().mul(0.4).view(p.sizes()));
  }
  at::Tensor loss(int64_t step) {
    const at::Tensor ids = at::arange(kRows).add(step).remainder(kWords);
    const at::Tensor x = torch::tanh(layer->forward(table->forward(ids)));
    mean.mul_(0.9).add_(x.detach().mean(0), 0.1);
    return torch::linear(x - mean, head).square().mean();
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear layer{nullptr};
  at::Tensor head, mean, same;
};

std::vector<std::string> names_of(const ModuleTensors::Named& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, value] : tensors) names.push_back(name);
  return names;
}

run::Config config_of(int64_t ranks, int64_t zero) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = ranks;
  config.parallel.zero = zero;
  config.precision.mode = "fp64";
  config.training.batch_size = ranks;
  config.training.steps = 3;
  config.optimizer.warmup_steps = 0;
  return config;
}

TEST(ModuleTensors, ListSharedTensorsOnce) {
  const Words module;
  const ModuleTensors tensors = tensors_of(module);
  EXPECT_THAT(names_of(tensors.parameters), ElementsAre("head", "layer.weight", "layer.bias"));
  EXPECT_THAT(names_of(tensors.buffers), ElementsAre("mean"));
  ASSERT_EQ(tensors.tables.size(), 1U);
  EXPECT_TRUE(tensors.tables[0].is_same(module.head));
}

TEST(ModuleTensors, TrainAsTheModuleThatHasThem) {
  comm::run_ranks(2, [](comm::World& world) {
    for (const int64_t zero : {0, 3}) {
      Words whole(world.rank()), listed(world.rank());  // rank 0's values must win
      ModuleTensors tensors;                            // copies of the handles, as a binding makes them
      for (const char* name : {"head", "layer.weight", "layer.bias"})
        tensors.parameters.emplace_back(name, listed.named_parameters()[name]);
      tensors.buffers.emplace_back("mean", listed.mean);
      tensors.tables.push_back(listed.table->weight);
      const run::Config config = config_of(2, zero);
      const auto want = initialize(world, whole, config), got = initialize(world, tensors, config);
      EXPECT_EQ(listed.mean.scalar_type(), at::kDouble);
      EXPECT_EQ(listed.head.scalar_type(), at::kDouble);
      for (int64_t step = 0; step < 3; ++step)
        for (const auto& [training, module] : {std::pair{want.get(), &whole}, std::pair{got.get(), &listed}}) {
          training->zero_grad();
          training->backward(module->loss(step + world.rank()));
          training->step();
        }
      const at::NoGradGuard no_grad;
      for (const auto& p : whole.named_parameters())
        test::expect_equal(listed.named_parameters()[p.key()].clone(), p.value().clone(), p.key());
      test::expect_equal(listed.mean, whole.mean, "mean");
      for (const auto& training : {&want, &got}) (*training)->end_pass();
    }
  });
}

TEST(ModuleTensors, KeepTablesFromRulesForMatrices) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto matrices_of = [&](const ModuleTensors& tensors) {
      const auto training = initialize(world, tensors, config_of(1, 0));
      std::vector<std::string> names;
      for (const nn::Parameter& p : training->parameters())
        if (p.hidden_matrix) names.push_back(p.name);
      return names;
    };
    const Words module, other;
    EXPECT_THAT(matrices_of(tensors_of(module)), ElementsAre("layer.weight"));
    ModuleTensors without_tables = tensors_of(other);
    without_tables.tables.clear();
    EXPECT_THAT(matrices_of(without_tables), ElementsAre("head", "layer.weight"));
  });
}

TEST(ModuleTensors, RefuseUndefinedTensors) {
  comm::run_ranks(2, [](comm::World& world) {
    ModuleTensors tensors;
    tensors.parameters.emplace_back("weight", at::ones({2, 2}).requires_grad_());
    tensors.buffers.emplace_back("mean", at::Tensor());
    EXPECT_EQ(test::thrown_message([&] { initialize(world, tensors, config_of(2, 0)); }),
              "[model] every tensor of a module must be defined: got none for mean; leave it out");
  });
}

}  // namespace
}  // namespace colossal::train::module_tensors_test
