// Update rules for shards on accelerators. They must give the results of the CPU, without copies of whole parameters.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/memory/device_meter.h"
#include "colossal/optim/config.h"
#include "colossal/optim/optimizer.h"
#include "ops/compare.h"
#include "support/accelerator.h"

namespace colossal::optim::optimizers_accelerator_test {
namespace {

class OptimizersOnAccelerator : public test::AcceleratorTest {};

constexpr int64_t kSlice = int64_t{1} << 22, kElements = 3 * kSlice + 5;

/// Returns some elements of a matrix after two updates, on both sides of the borders of slices. Also returns the peak
/// memory of the device during the second update, in bytes, less the memory in use before.
std::pair<at::Tensor, int64_t> stepped(const OptimizerConfig& config, at::Device device) {
  std::pair<at::Tensor, int64_t> result;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {});
    nn::Parameters parameters({}, {at::kFloat, device, 1});
    nn::Parameter& matrix = parameters.add("w", tensor::ShardSpec::whole({1, kElements}), nn::Init::zeros(), true);
    const auto wave = [&](int64_t phase) {
      return at::arange(phase, kElements + phase, at::kFloat).remainder_(13).sub_(5.5).to(device);
    };
    std::vector<memory::Shard> shards{{memory::Shard::Parts::of(wave(0)), {{&matrix, 0, {0, kElements, true}}}}};
    const auto optimizer = make_optimizer(config, shards, {parameters, mesh});
    for (int64_t step = 1; step <= 2; ++step) {
      shards[0].lease()->gradients = wave(7 * step);
      memory::restart_peak(device);
      const int64_t before = memory::peak_bytes(device);
      optimizer->step(step, 0.1, 0.5);
      result.second = memory::peak_bytes(device) - before;
    }
    std::vector<at::Tensor> parts;
    for (const int64_t from : {int64_t{0}, kSlice - 20, 2 * kSlice - 20, kElements - 40})
      parts.push_back(shards[0].lease()->values.narrow(0, from, 40).cpu());
    result.first = at::cat(parts);
  });
  return result;
}

TEST_F(OptimizersOnAccelerator, RunsLarsInSlices) {
  OptimizerConfig lars;
  lars.name = "lars";
  lars.momentum = 0.9;
  lars.weight_decay = 0.1;
  const auto [there, bytes] = stepped(lars, test::accelerator());
  // Sums are in fp64 and are rounded once; a few operations in fp32 follow.
  ops::expect_close(there, stepped(lars, at::kCPU).first, at::kFloat, 16, "values", 4);
  EXPECT_LE(bytes, 8 * 4 * kSlice) << "more than eight buffers as long as a slice, where nine are three of the matrix";
}

}  // namespace
}  // namespace colossal::optim::optimizers_accelerator_test
