// Scopes in which parameters of a user-defined module are whole, under every ZeRO stage and with tiers.
#include "colossal/train/gathered.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <optional>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/module_training.h"
#include "support/temporary_folder.h"

namespace colossal::train::gathered_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kWidth = 32;
constexpr int kLayers = 5;

struct Chain : torch::nn::Module {
  Chain() {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
      for (at::Tensor& p : layers.back()->parameters())
        p.copy_(at::arange(p.numel()).add(i).mul(0.37).sin().mul(0.2).view(p.sizes()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer->forward(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

run::Config config_of(int64_t ranks, int64_t zero) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = ranks;
  config.parallel.zero = zero;
  config.parallel.chunk_mib = 5.0 / 1024;  // a layer per chunk
  config.precision.mode = "fp32";
  config.optimizer.warmup_steps = 0;
  config.training.steps = 4;
  config.training.batch_size = 4 * ranks;
  return config;
}

at::Tensor loss_of(Chain& module) { return module.forward(at::ones({4, kWidth}).mul(0.1)).square().mean(); }

double first_of(const at::Tensor& parameter) { return parameter.const_data_ptr<float>()[0]; }

/// Runs body(module, training) on each rank, under ZeRO 0 and 3 in memory, and under ZeRO 3 with a disk.
template <class Body>
void for_each_residence(const Body& body) {
  const test::TemporaryFolder folder;
  for (const int64_t zero : {0, 3, 4}) {
    comm::run_ranks(2, [&](comm::World& world) {
      Chain module;
      run::Config config = config_of(2, std::min<int64_t>(zero, 3));
      if (zero == 4) config.memory.host = 1 << 20, config.memory.disk = folder.path();
      const auto training = initialize(world, module, config);
      body(module, *training);
    });
  }
}

TEST(Gathered, MakesParametersReadableByAddress) {
  Chain alone;
  for_each_residence([&](Chain& module, ModuleTraining& training) {
    Gathered all = training.gathered();
    for (int i = 0; i < kLayers; ++i) {
      EXPECT_EQ(first_of(module.layers[i]->weight), first_of(alone.layers[i]->weight));
      EXPECT_EQ(first_of(module.layers[i]->bias), first_of(alone.layers[i]->bias));
    }
    all.end();
    all.end();
    if (training.store().options().sharing.parameters) {
      EXPECT_THROW(first_of(module.layers[0]->weight), c10::Error);
      EXPECT_EQ(training.store().counts().gathered, 0) << "released again";
    }
  });
}

TEST(Gathered, GathersTheChunksOfGivenParametersOnly) {
  comm::run_ranks(2, [&](comm::World& world) {
    Chain module;
    const auto training = initialize(world, module, config_of(2, 3));
    const int64_t before = training->store().counts().gathers;
    const std::vector<at::Tensor> some{module.layers[3]->weight, module.layers[1]->weight, module.layers[3]->bias};
    {
      const Gathered outer = training->gathered(some);
      EXPECT_EQ(training->store().counts().gathers, before + 2);
      {
        const Gathered inner = training->gathered({&some[0], 1});
      }
      EXPECT_NE(module.layers[3]->weight.data_ptr(), nullptr) << "still inside of the outer scope";
      EXPECT_THROW(first_of(module.layers[0]->weight), c10::Error);
    }
    EXPECT_THROW(first_of(module.layers[3]->weight), c10::Error);
  });
}

void train(Chain& module, ModuleTraining& training, bool with_scopes) {
  for (int step = 0; step < 3; ++step) {
    training.zero_grad();
    std::optional<Gathered> scope;
    if (with_scopes) scope.emplace(training.gathered({&module.layers[2]->weight, 1}));
    const at::Tensor loss = loss_of(module);
    if (scope) scope->end();
    training.backward(loss);
    training.step();
    if (with_scopes) training.gathered().end();
  }
}

// Scopes inside of and between passes. All ranks have the same rows, so one rank trains the same.
TEST(Gathered, LeavesTrainingUnchanged) {
  Chain alone;
  comm::run_ranks(
      1, [&](comm::World& world) { train(alone, *initialize(world, alone, config_of(1, 0)), /*with_scopes=*/false); });
  for_each_residence([&](Chain& module, ModuleTraining& training) {
    train(module, training, /*with_scopes=*/true);
    const Gathered whole = training.gathered();
    for (size_t i = 0; i < alone.parameters().size(); ++i)
      EXPECT_TRUE(at::allclose(module.parameters()[i], alone.parameters()[i], 1e-4, 1e-6)) << i;
  });
}

TEST(Gathered, KeepsChangedValuesOfRanksThatAgree) {
  Chain alone;
  alone.layers[2]->weight.mutable_data_ptr<float>()[5] += 1;
  for_each_residence([&](Chain& module, ModuleTraining& training) {
    const auto expect_kept = [&] {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(module.layers[2]->weight, alone.layers[2]->weight));
      training.end_pass();
    };
    Gathered scope = training.gathered();
    module.layers[2]->weight.mutable_data_ptr<float>()[5] += 1;
    scope.end();
    expect_kept();
    if (!training.store().options().sharing.parameters) return;
    Gathered other = training.gathered();
    if (training.store().mesh().world().rank() == 1) module.layers[3]->bias.mutable_data_ptr<float>()[0] += 1;
    EXPECT_THAT([&] { other.end(); }, ThrowsMessage<Error>(HasSubstr("must be the same on all ranks")));
    expect_kept();
    training.gathered().end();
  });
}

TEST(Gathered, RefusesForeignTensorsAndUpdatesInside) {
  comm::run_ranks(1, [&](comm::World& world) {
    Chain module;
    const auto training = initialize(world, module, config_of(1, 3));
    const at::Tensor foreign = at::zeros({3, 2});
    EXPECT_THAT([&] { training->gathered({&foreign, 1}); },
                ThrowsMessage<Error>(HasSubstr("takes parameters of the module: got a tensor of shape [3, 2]")));
    training->zero_grad();
    training->backward(loss_of(module));
    Gathered scope = training->gathered();
    EXPECT_THAT([&] { training->step(); }, ThrowsMessage<Error>(HasSubstr("step() must be called outside")));
    scope.end();
    training->step();
  });
}

TEST(Gathered, EndsWithTheTraining) {
  comm::run_ranks(1, [&](comm::World& world) {
    Chain module;
    auto training = initialize(world, module, config_of(1, 3));
    Gathered scope = training->gathered();
    training.reset();
    EXPECT_THROW(first_of(module.layers[0]->weight), c10::Error);
    scope.end();
  });
}

}  // namespace
}  // namespace colossal::train::gathered_test
