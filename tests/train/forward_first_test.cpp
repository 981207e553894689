// A forward pass before zero_grad(), which is ordinary in PyTorch: numbers, communication, transfers and measured
// memory are those of a forward pass after it, also with evaluations and saves between steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/train/module_training.h"
#include "support/ranks_values.h"
#include "support/temporary_folder.h"

namespace colossal::train::forward_first_test {
namespace {

constexpr int64_t kWidth = 32, kRows = 8, kSteps = 6;  // a layer in fp32 is one block of a disk

struct Deep : torch::nn::Module {
  Deep() {
    for (int i = 0; i < 6; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    const at::NoGradGuard no_grad;  // no random generator, because modules of several ranks are made concurrently
    double phase = 0;
    for (at::Tensor& p : parameters())
      p.copy_(at::arange(p.numel(), at::kDouble).add(++phase).mul(1.7).sin().mul(0.2).view(p.sizes()));
  }
  at::Tensor loss(at::Tensor x) {
    for (torch::nn::Linear& layer : layers) x = torch::tanh(layer->forward(x)) + x;
    return x.to(at::kFloat).square().mean();
  }
  std::vector<torch::nn::Linear> layers;
};

enum class Order { ZeroFirst, ForwardFirst };

/// What a step computed, sent and measured. Transfers of the disk are left out, because they depend on time.
struct StepTrace {
  double loss, norm;
  int64_t gathers, releases, peak_gathered, loaded;
  int64_t peak_host, device_model, device_peak;
  bool operator==(const StepTrace&) const = default;
};

std::ostream& operator<<(std::ostream& out, const StepTrace& s) {
  return out << concat("loss ", s.loss, ", norm ", s.norm, ", gathers ", s.gathers, ", releases ", s.releases,
                       ", peak_gathered ", s.peak_gathered, ", loaded ", s.loaded, ", peak_host ", s.peak_host,
                       ", device ", s.device_model, " of ", s.device_peak);
}

void evaluate(Deep& module, ModuleTraining& training, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  module.loss(x);
  training.end_pass();
}

void run_step(Deep& module, ModuleTraining& training, const at::Tensor& x, Order order) {
  if (order == Order::ZeroFirst) training.zero_grad();
  const at::Tensor loss = module.loss(x);
  if (order == Order::ForwardFirst) training.zero_grad();
  training.backward(loss);
}

/// Returns the steps of rank 0, and the values of its parameters as the last element of `values`.
std::vector<StepTrace> course_of(const run::Config& config, Order order, const std::string& saves, at::Tensor& values) {
  std::vector<StepTrace> course;
  comm::run_ranks(static_cast<int>(config.parallel.data), [&](comm::World& world) {
    Deep module;
    std::vector<StepTrace> mine;
    const auto training = initialize(world, module, config);
    const auto* tiers = dynamic_cast<const memory::TieredStore*>(training->store().options().offload.get());
    memory::ChunkStore::Counts chunks_before{};
    for (int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor x = training->input(at::arange(kRows * kWidth, at::kDouble)
                                               .add(100.0 * static_cast<double>(step) + world.rank())
                                               .sin()
                                               .view({kRows, kWidth}));
      if (step == 2) evaluate(module, *training, x);
      if (step == 3) training->save(saves);
      if (step == 3 || step == 4) evaluate(module, *training, x);
      run_step(module, *training, x, order);
      const double norm = training->step().gradient_norm;
      const memory::ChunkStore::Counts chunks = training->store().counts();
      const DeviceUse device = training->device_use().value_or(DeviceUse{});
      mine.push_back({training->loss(), norm, chunks.gathers - chunks_before.gathers,
                      chunks.releases - chunks_before.releases, chunks.peak_gathered,
                      chunks.loaded - chunks_before.loaded, tiers ? tiers->counts().peak_host_bytes : 0, device.model,
                      device.peak});
      chunks_before = chunks;
    }
    EXPECT_TRUE(!tiers || tiers->counts().bytes_read > 0) << "the budget must be too small for all tensors";
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> all;
    for (const at::Tensor& p : module.parameters()) all.push_back(p.clone().view(-1));
    training->end_pass();
    if (world.rank() == 0) course = mine, values = at::cat(all);
  });
  return course;
}

struct Case {
  const char* name;
  int64_t ranks, zero, host, device;
};

class ForwardFirst : public testing::TestWithParam<Case> {};

TEST_P(ForwardFirst, EqualsZeroGradFirst) {
  const auto [name, ranks, zero, host, device] = GetParam();
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = ranks;
  config.parallel.zero = zero;
  config.parallel.chunk_mib = 5.0 / 1024;  // a layer per chunk
  config.precision.mode = "bf16";
  config.optimizer.warmup_steps = 0;
  config.training.steps = kSteps;
  config.training.batch_size = ranks;
  test::TemporaryFolder folder;
  if (host > 0) config.memory.host = host * ranks, config.memory.disk = folder / "disk";
  config.memory.device = device;
  at::Tensor want_values, got_values;
  const std::vector<StepTrace> want = course_of(config, Order::ZeroFirst, folder / "a", want_values),
                               got = course_of(config, Order::ForwardFirst, folder / "b", got_values);
  EXPECT_TRUE(at::equal(got_values, want_values));
  EXPECT_EQ(got, want);
  EXPECT_EQ(want.back().gathers > 0, zero == 3 || host > 0);
  EXPECT_EQ(want.back().device_peak > 0, device > 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ForwardFirst,
                         testing::Values(Case{"Replicated", 2, 0, 0, 0}, Case{"Zero1", 2, 1, 0, 0},
                                         Case{"Zero3", 2, 3, 0, 0}, Case{"Host", 1, 0, 100 << 10, 0},
                                         Case{"Zero3Host", 2, 3, 70 << 10, 0},
                                         Case{"Device", 1, 0, 100 << 10, 60 << 10}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace colossal::train::forward_first_test
