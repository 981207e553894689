// A torch::nn::Module without code for devices, trained on accelerators and on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/module_training.h"
#include "support/accelerator.h"
#include "support/tolerance.h"

namespace colossal::train::module_accelerator_test {
namespace {

constexpr int64_t kWidth = 6, kRows = 12, kSteps = 4;

/// A module whose parameters are created on `device`, because torch::nn's own layers cannot move to devices that are
/// not LibTorch's own.
struct Foreign : torch::nn::Module {
  explicit Foreign(at::Device device) {
    table = make("table", {5, kWidth}, device);
    norm = make("norm", {kWidth}, device);
    bias = make("bias", {kWidth}, device);
    up = make("up", {4 * kWidth, kWidth}, device);
    down = make("down", {kWidth, 4 * kWidth}, device);
    scale = register_buffer("scale", at::full({kWidth}, 0.5, at::dtype(at::kFloat).device(device)));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = at::embedding(table, ids) * scale;
    const at::Tensor h = at::gelu(at::linear(at::layer_norm(x, {kWidth}, norm, bias), up));
    return x + at::linear(h, down);
  }
  at::Tensor table, norm, bias, up, down, scale;

 private:
  at::Tensor make(const std::string& name, at::IntArrayRef sizes, at::Device device) {
    const at::Tensor numbers = at::arange(c10::multiply_integers(sizes), at::kDouble).add(++made_).mul(1.7).sin();
    return register_parameter(name, numbers.mul(0.4).to(at::kFloat).view(sizes).to(device));
  }
  double made_ = 0;
};

std::vector<double> losses(bool there, int64_t data, int64_t zero) {
  run::Config config;
  config.parallel.data = data;
  config.parallel.zero = zero;
  config.parallel.chunk_mib = 0.0003;  // one or two layers per chunk
  config.precision.mode = "fp64";
  config.optimizer.learning_rate = 1e-2;
  config.optimizer.epsilon = 1e-3;  // so large that rounding does not decide the direction of small gradients
  config.training.batch_size = kRows;
  std::vector<double> all;
  comm::run_ranks(static_cast<int>(data), [&](comm::World& world) {
    const at::Device device = there ? test::accelerator(world.local_rank()) : at::Device(at::kCPU);
    Foreign module(device);
    const at::Tensor ids = at::arange(kRows, at::kLong).remainder(5).view({data, -1})[world.rank()];
    const auto pass = [&] { return module.forward(ids.to(device)); };
    const auto training = initialize(world, module, config, pass, device);
    for (int64_t step = 0; step < kSteps; ++step) {
      training->zero_grad();
      const at::Tensor loss = (module.forward(training->input(ids)) - 1).square().mean();
      training->backward(loss);
      training->step();
      EXPECT_EQ(training->loss(), loss.item<double>());
      const double mean = training->mean(training->loss());
      if (world.rank() == 0) all.push_back(mean);
    }
  });
  return all;
}

class ModuleOnAccelerator : public test::AcceleratorTest {};

TEST_F(ModuleOnAccelerator, TrainsLikeTheCpu) {
  const at::Tensor want = at::tensor(losses(false, 1, 0), at::kDouble);
  EXPECT_LT(want[-1].item<double>(), want[0].item<double>());
  // The terms of sums over a layer's width, the rows and the steps, through four layers.
  constexpr int64_t kTerms = 4 * kWidth * kRows * kSteps * 4;
  for (const int64_t zero : {0, 1, 2, 3})
    for (const int64_t data : {1, 2}) {
      if (!test::has_accelerators_for(data)) continue;
      test::expect_close(at::tensor(losses(true, data, zero), at::kDouble), want, kTerms,
                         concat("zero ", zero, " over ", data));
    }
}

TEST_F(ModuleOnAccelerator, WaitsForInputOnTheHost) {
  if (!test::AcceleratorWaits::are_counted()) GTEST_SKIP() << "GPUs do not count";
  comm::run_ranks(1, [&](comm::World& world) {
    Foreign module(at::kCPU);
    const auto training = initialize(world, module, run::Config{}, {}, at::kCPU);
    const at::Tensor ids = at::arange(kRows, at::kLong), there = ids.to(test::accelerator());
    test::AcceleratorWaits waits;
    EXPECT_TRUE(at::equal(training->input(there), ids));
    EXPECT_EQ(waits.counts().copies_to_host, 1) << waits.counts();
    EXPECT_EQ(waits.counts().copies_not_awaited, 0) << waits.counts();
  });
}

TEST_F(ModuleOnAccelerator, WaitsOncePerStep) {
  if (!test::AcceleratorWaits::are_counted())
    GTEST_SKIP() << "one wait a step is no wait too many, and GPUs do not count";
  for (const int64_t parts : {1, 3})
    comm::run_ranks(1, [&](comm::World& world) {
      run::Config config;
      config.training.batch_size = kRows;
      config.training.accumulate = parts;
      config.training.clip = 1;
      const at::Device device = test::accelerator();
      Foreign module(device);
      const auto training = initialize(world, module, config, {}, device);
      const at::Tensor ids = at::arange(kRows / parts, at::kLong).remainder(5).pin_memory();
      const auto step = [&] {
        training->zero_grad();
        for (int64_t part = 0; part < parts; ++part)
          training->backward((module.forward(training->input(ids)) - 1).square().mean());
        training->step();
      };
      step();
      test::AcceleratorWaits waits;
      step();
      EXPECT_EQ(waits.counts().waits(), 1) << parts << " micro-batches: " << waits.counts();
      EXPECT_EQ(waits.counts().copies_not_awaited, parts);
    });
}

}  // namespace
}  // namespace colossal::train::module_accelerator_test
