// Values that a caller writes into parameters of a module in training: kept, while all others keep their exact values.
#include "colossal/memory/written_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <map>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/module_training.h"

namespace colossal::train::written_values_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kWidth = 24;

struct Pair : torch::nn::Module {
  Pair() {
    const at::NoGradGuard no_grad;
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, kWidth));
    for (at::Tensor& p : parameters())
      p.copy_(at::arange(p.numel()).add(p.dim()).mul(0.37).sin().mul(0.2).view(p.sizes()));
  }
  at::Tensor loss(const at::Tensor& x) { return second->forward(torch::tanh(first->forward(x))).square().mean(); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

run::Config config_of(int64_t zero, const std::string& compress = "none") {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = 2;
  config.parallel.zero = zero;
  config.parallel.compress = compress;
  config.parallel.chunk_mib = 1.0 / 1024;
  config.precision.mode = "bf16";
  config.optimizer.warmup_steps = 0;
  config.training.steps = 8;
  config.training.batch_size = 8;
  return config;
}

void step(Pair& module, ModuleTraining& training) {
  const auto x = at::arange(4 * kWidth).add(training.steps_done()).mul(0.7).cos().view({4, kWidth});
  training.zero_grad();
  training.backward(module.loss(training.input(x)));
  training.step();
}

/// Returns the master weights of this rank as they are.
std::vector<at::Tensor> masters_of(ModuleTraining& training) {
  std::vector<at::Tensor> masters;
  memory::for_leases(training.store().shards(), {.values = memory::Access::Read},
                     [&](size_t, memory::Resident& shard) { masters.push_back(shard.values.clone()); });
  return masters;
}

void expect_masters_stay(const run::Config& config, const std::string& name) {
  comm::run_ranks(2, [&](comm::World& world) {
    Pair module;
    const auto training = initialize(world, module, config);
    for (int i = 0; i < 3; ++i) {
      step(module, *training);
      const std::vector<at::Tensor> before = masters_of(*training);
      training->store().keep_written();
      const std::vector<at::Tensor> after = masters_of(*training);
      for (size_t shard = 0; shard < before.size(); ++shard)
        EXPECT_TRUE(at::equal(before[shard], after[shard])) << name << ", step " << i << ", shard " << shard;
    }
  });
}

// Master weights are compared with parameters, so each rule and each gather must round as Tensor::to() does.
TEST(WrittenValues, KeepTheDigitsOfEveryRule) {
  for (const std::string& rule : optim::rule_names()) {
    run::Config config = config_of(1);
    config.optimizer.name = rule;
    if (rule == "galore") config.optimizer.rank = 5;
    expect_masters_stay(config, rule);
  }
}

TEST(WrittenValues, KeepTheDigitsUnderCompression) {
  for (const std::string compress : {"int8", "fp8"})
    for (const int64_t zero : {1, 3}) expect_masters_stay(config_of(zero, compress), concat(compress, ", zero ", zero));
}

/// Writes a large value to one element of the module, which changes the scale of its block in compressed gathers.
void write_one(Pair& module, int64_t column) {
  const at::NoGradGuard no_grad;
  module.first->weight.select(0, 0).select(0, column).fill_(4);
}

// The scale of a block changes with a written element, and with it what a gather would return for its neighbours.
TEST(WrittenValues, KeepTheDigitsBesideWrittenElementsUnderCompression) {
  for (const std::string compress : {"int8", "fp8"})
    for (const int64_t zero : {1, 3})
      for (const double gathered_mib : {0., 64.}) {
        if (zero < 3 && gathered_mib > 0) continue;
        run::Config config = config_of(zero, compress);
        config.parallel.max_gathered_mib = gathered_mib;
        comm::run_ranks(2, [&](comm::World& world) {
          Pair module;
          const auto training = initialize(world, module, config);
          step(module, *training);
          const std::vector<at::Tensor> before = masters_of(*training);
          for (const int64_t column : {0, 0, 1}) {
            write_one(module, column);
            training->store().keep_written();
            training->store().keep_written();
          }
          const std::vector<at::Tensor> after = masters_of(*training);
          int64_t changed = 0;
          for (size_t shard = 0; shard < before.size(); ++shard)
            changed += before[shard].ne(after[shard]).sum().item<int64_t>();
          EXPECT_EQ(changed, world.rank() == 0 ? 2 : 0) << compress << ", zero " << zero << ", " << gathered_mib;
        });
      }
}

TEST(WrittenValues, KeepValuesOfParametersThatAreSwapped) {
  for (const int64_t zero : {0, 1, 2, 3})
    comm::run_ranks(2, [&](comm::World& world) {
      Pair module;
      const auto training = initialize(world, module, config_of(zero));
      step(module, *training);
      std::map<std::string, at::Tensor> before;
      WholeTensors own = training->named_tensors();
      for (const char* name : {"first.weight", "first.bias", "second.weight", "second.bias"})
        before[name] = own.read(name).to(at::kBFloat16);
      for (const bool is_weight : {true, false}) {
        at::Tensor& a = is_weight ? module.first->weight : module.first->bias;
        at::Tensor& b = is_weight ? module.second->weight : module.second->bias;
        const at::Tensor of_a = a.variable_data();
        a.set_data(b.variable_data());
        b.set_data(of_a);
      }
      WholeTensors swapped = training->named_tensors();
      const auto expect_same = [&](const char* name, const char* other) {
        EXPECT_TRUE(at::equal(swapped.read(name).to(at::kBFloat16), before[other])) << name << ", zero " << zero;
      };
      expect_same("first.weight", "second.weight");
      expect_same("second.weight", "first.weight");
      expect_same("first.bias", "second.bias");
      expect_same("second.bias", "first.bias");
      step(module, *training);
    });
}

TEST(WrittenValues, KeepValuesOfModulesOfLibTorch) {
  for (const int64_t zero : {0, 1, 2, 3})
    comm::run_ranks(2, [&](comm::World& world) {
      Pair module;
      const auto training = initialize(world, module, config_of(zero));
      step(module, *training);
      {
        const at::NoGradGuard no_grad;
        module.first->weight.fill_(0.25);
        module.first->bias.set_data(at::full({kWidth}, -0.5, at::kBFloat16));
        module.second->bias.variable_data().zero_();
      }
      WholeTensors whole = training->named_tensors();
      EXPECT_TRUE(whole.read("first.weight").eq(0.25).all().item<bool>()) << zero;
      EXPECT_TRUE(whole.read("first.bias").eq(-0.5).all().item<bool>()) << zero;
      EXPECT_TRUE(whole.read("second.bias").eq(0).all().item<bool>()) << zero;
      EXPECT_FALSE(
          at::equal(whole.read("second.weight"), whole.read("second.weight").to(at::kBFloat16).to(at::kFloat)));
      step(module, *training);
      EXPECT_TRUE(training->named_tensors().read("first.weight").sub(0.25).abs().lt(0.01).all().item<bool>()) << zero;
    });
}

TEST(WrittenValues, RefuseAnotherShape) {
  comm::run_ranks(1, [](comm::World& world) {
    Pair module;
    run::Config config = config_of(3);
    config.parallel.data = 1;
    const auto training = initialize(world, module, config);
    training->zero_grad();
    training->backward(module.loss(training->input(at::ones({4, kWidth}))));
    module.second->bias.set_data(at::zeros({3, 8}, at::kBFloat16));
    EXPECT_THAT([&] { training->step(); }, ThrowsMessage<Error>(HasSubstr("for second.bias; give it other values")));
  });
}

}  // namespace
}  // namespace colossal::train::written_values_test
