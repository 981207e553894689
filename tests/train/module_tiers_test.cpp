// Training of an unmodified user-defined module whose parameters, gradients and states are stored in host memory and on
// a disk. Results equal training with all tensors in memory, bitwise, regardless of the module's calls between steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <limits>
#include <map>
#include <mutex>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/module_training.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::train::module_tiers_test {
namespace {

constexpr int64_t kWidth = 32, kRows = 8;  // a layer in fp32 is one block of a disk

/// Five layers: the third is frozen, the fifth is never used, and the first one's weight is used again after the
/// fourth. A matrix that only the loss reads, not forward. A buffer that forward uses and changes.
struct Own : torch::nn::Module {
  Own() {
    for (int i = 0; i < 5; ++i)
      layers.push_back(register_module("layer" + std::to_string(i),
                                       torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(i != 1))));
    tied = register_parameter("tied", layers[0]->weight);
    penalty = register_parameter("penalty", at::zeros({kWidth, kWidth}));
    mean = register_buffer("mean", at::zeros({kWidth}));
    layers[2]->weight.requires_grad_(false);
    layers[2]->bias.requires_grad_(false);
    const at::NoGradGuard no_grad;  // no random generator, because modules of several ranks are made concurrently
    double phase = 0;
    for (at::Tensor& p : parameters())
      p.copy_(at::arange(p.numel(), at::kDouble).add(++phase).mul(1.7).sin().mul(0.2).view(p.sizes()));
  }
  at::Tensor forward(at::Tensor x) {
    for (const int i : {0, 1, 2, 3}) x = torch::tanh(layers[i]->forward(x)) + x;
    x = torch::linear(x, tied);
    if (is_training()) mean.mul_(0.9).add_(x.detach().mean(0), 0.1);
    return x - mean;
  }
  std::vector<torch::nn::Linear> layers;
  at::Tensor tied, penalty, mean;
};

at::Tensor points(int64_t step, int rank) {
  return at::arange(kRows * kWidth, at::kDouble)
      .add(100.0 * static_cast<double>(step) + 7 * rank)
      .mul(0.37)
      .sin()
      .view({kRows, kWidth});
}

/// The loss. It reads a parameter that is gathered here, outside of forward, and one that forward reads, too.
at::Tensor loss_of(Own& module, const ModuleTraining& training, int64_t step, int rank) {
  const at::Tensor x = training.input(points(step, rank));
  const at::Tensor penalties = (module.penalty - module.layers[1]->weight).to(at::kFloat).square().mean();
  return (module.forward(x).to(at::kFloat) - x.to(at::kFloat).cos()).square().mean() + penalties;
}

run::Config config_of(int64_t ranks, int64_t zero, const std::string& precision) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = ranks;
  config.parallel.zero = zero;
  config.parallel.chunk_mib = 5.0 / 1024;  // one or two layers per chunk
  config.precision.mode = precision;
  config.optimizer.learning_rate = 1e-2;
  config.optimizer.warmup_steps = 0;
  config.training.steps = 8;
  config.training.batch_size = kRows * ranks;
  return config;
}

/// The config of a run in memory with the arithmetic of tiers.
run::Config in_memory(run::Config config) {
  if (config.parallel.zero == 0) config.parallel.zero = 3, config.parallel.zero_group = 1;
  return config;
}

run::Config in_tiers(run::Config config, const std::string& folder, int64_t host,
                     const std::string& placement = "auto") {
  config.memory.host = host, config.memory.disk = folder, config.memory.placement = placement;
  return config;
}

/// The exact results of a rank, its parameters and buffers.
struct Course {
  std::vector<double> numbers;
  std::map<std::string, at::Tensor> values;
};

void train_step(Own& module, ModuleTraining& training, int64_t step, int rank, Course& course) {
  training.zero_grad();
  training.backward(loss_of(module, training, step, rank));
  course.numbers.push_back(training.step().gradient_norm);
  course.numbers.push_back(training.loss());
}

void evaluate(Own& module, ModuleTraining& training, int rank, Course& course) {
  const at::NoGradGuard no_grad;
  module.eval();
  course.numbers.push_back(training.mean(loss_of(module, training, 77, rank).item<double>()));
  training.end_pass();
  module.train();
}

void finish(Own& module, ModuleTraining& training, Course& course) {
  const at::NoGradGuard no_grad;
  for (const auto& p : module.named_parameters()) course.values[p.key()] = p.value().clone();
  for (const auto& b : module.named_buffers()) course.values[b.key()] = b.value().clone();
  training.end_pass();
}

/// Runs steps, evaluations between them, and one step whose gradients are not finite.
Course course_of(const run::Config& config) {
  Course course;
  comm::run_ranks(static_cast<int>(config.parallel.data), [&](comm::World& world) {
    Own module;
    Course mine;
    const auto training = initialize(world, module, config);
    evaluate(module, *training, world.rank(), mine);
    for (int64_t step = 0; step < 2; ++step) train_step(module, *training, step, world.rank(), mine);
    evaluate(module, *training, world.rank(), mine);
    evaluate(module, *training, world.rank(), mine);
    training->zero_grad();
    training->backward(loss_of(module, *training, 2, world.rank()) * std::numeric_limits<double>::quiet_NaN());
    EXPECT_THAT(test::thrown_message([&] { training->step(); }), testing::HasSubstr("is not finite"));
    for (int64_t step = 2; step < 4; ++step) train_step(module, *training, step, world.rank(), mine);
    finish(module, *training, mine);
    if (config.parallel.max_gathered_mib == 0) EXPECT_EQ(training->store().counts().gathered, 0);
    if (world.rank() == 0) course = mine;
  });
  return course;
}

void expect_equal(const Course& got, const Course& want, const std::string& what) {
  EXPECT_EQ(got.numbers, want.numbers) << what;
  ASSERT_EQ(got.values.size(), want.values.size()) << what;
  for (const auto& [name, value] : want.values) EXPECT_TRUE(at::equal(got.values.at(name), value)) << what << name;
}

/// Returns the bytes that an error message names after `words`.
int64_t bytes_behind(const std::string& message, const std::string& words) {
  EXPECT_THAT(message, testing::HasSubstr(words));
  const size_t begin = message.find(words) + words.size();
  return parse_bytes(message.substr(begin, message.find_first_of("\" ", begin) - begin)).value_or(0);
}

/// Returns the smallest host budget for which a run of `config` is not refused.
int64_t min_budget_of(const run::Config& config, const std::string& folder) {
  std::string message;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(config.parallel.data), [&](comm::World& world) {
    Own module;
    const std::string mine = test::thrown_message([&] { initialize(world, module, in_tiers(config, folder, 4096)); });
    const std::lock_guard lock(mutex);
    message = mine;
  });
  return bytes_behind(message, "works is \"");
}

/// Returns the smallest device budget for which the first step is not refused.
int64_t min_device_of(run::Config config) {
  std::string message;
  std::mutex mutex;
  const auto refused = [&](const auto& act) {
    comm::run_ranks(static_cast<int>(config.parallel.data), [&](comm::World& world) {
      Own module;
      const std::string mine = test::thrown_message([&] { act(world, module); });
      const std::lock_guard lock(mutex);
      message = mine;
    });
    return message;
  };
  config.memory.device = 16;
  config.memory.device =
      bytes_behind(refused([&](auto& world, auto& module) { initialize(world, module, config); }), "alone has ");
  const auto first_step = [&](auto& world, auto& module) {
    const auto training = initialize(world, module, config);
    Course course;
    train_step(module, *training, 0, world.rank(), course);
  };
  return bytes_behind(refused(first_step), "works is \"");
}

struct Case {
  int64_t ranks, zero;
  const char* precision;
};

class ModuleInTiers : public testing::TestWithParam<Case> {};

TEST_P(ModuleInTiers, EqualsTrainingInMemory) {
  const auto [ranks, zero, precision] = GetParam();
  const run::Config config = config_of(ranks, zero, precision);
  const Course want = course_of(in_memory(config));
  test::TemporaryFolder folder;
  const int64_t least = min_budget_of(config, folder / "disk");
  for (const auto& [placement, host] : std::vector<std::pair<std::string, int64_t>>{
           {"auto", least}, {"lru", 2 * least}, {"static", 2 * least}, {"auto", 1 << 30}})
    expect_equal(course_of(in_tiers(config, folder / "disk", host, placement)), want,
                 concat(placement, " ", host, " "));
}

TEST_P(ModuleInTiers, EqualsTrainingInMemoryWithMoreGathered) {
  const auto [ranks, zero, precision] = GetParam();
  if (zero == 1) return;  // parameters are not sharded
  run::Config config = config_of(ranks, zero, precision);
  config.parallel.max_gathered_mib = 3 * config.parallel.chunk_mib;
  const Course want = course_of(in_memory(config));
  test::TemporaryFolder folder;
  expect_equal(course_of(in_tiers(config, folder / "disk", min_budget_of(config, folder / "disk"))), want,
               "max_gathered_mib");
}

TEST_P(ModuleInTiers, EqualsTrainingInMemoryOnASmallDevice) {
  const auto [ranks, zero, precision] = GetParam();
  if (zero == 1) GTEST_SKIP() << "parameters are whole for good";
  run::Config config = config_of(ranks, zero, precision);
  const Course want = course_of(in_memory(config));
  const int64_t least = min_device_of(config);  // measured with a finite loss; the course also has one that is not
  test::TemporaryFolder folder;
  for (const auto& [placement, device] : std::vector<std::pair<std::string, int64_t>>{
           {"auto", least + 64}, {"lru", least + least / 2}, {"auto", 1 << 30}}) {
    config = in_tiers(config, folder / "disk", 0, placement);
    config.memory.device = device;
    expect_equal(course_of(config), want, concat(placement, " ", device, " "));
  }
}

TEST_P(ModuleInTiers, ResumesUnderAnotherPlacement) {
  const auto [ranks, zero, precision] = GetParam();
  const run::Config config = config_of(ranks, zero, precision), whole = in_memory(config);
  test::TemporaryFolder folder;
  const int64_t least = min_budget_of(config, folder / "disk");
  const run::Config small = in_tiers(config, folder / "disk", least),
                    other = in_tiers(config, folder / "b", 2 * least, "lru");
  const auto run = [&](const run::Config& first, const run::Config& then, const std::string& saved) {
    Course course;
    comm::run_ranks(static_cast<int>(config.parallel.data), [&](comm::World& world) {
      Course mine;
      {
        Own module;
        const auto training = initialize(world, module, first);
        for (int64_t step = 0; step < 2; ++step) train_step(module, *training, step, world.rank(), mine);
        training->save(saved);
      }
      Own module;
      const auto training = initialize(world, module, then);
      training->load(saved);
      for (int64_t step = 2; step < 4; ++step) train_step(module, *training, step, world.rank(), mine);
      finish(module, *training, mine);
      if (world.rank() == 0) course = mine;
    });
    return course;
  };
  const Course want = run(whole, whole, folder / "0");
  expect_equal(run(whole, small, folder / "1"), want, "memory -> tiers ");
  expect_equal(run(small, whole, folder / "2"), want, "tiers -> memory ");
  expect_equal(run(small, other, folder / "3"), want, "tiers -> other tiers ");
}

INSTANTIATE_TEST_SUITE_P(Layouts, ModuleInTiers,
                         testing::Values(Case{1, 0, "fp32"}, Case{2, 0, "bf16"}, Case{2, 1, "fp32"},
                                         Case{2, 3, "bf16"}),
                         [](const auto& info) {
                           return concat("ranks", info.param.ranks, "_zero", info.param.zero, "_",
                                         info.param.precision);
                         });

}  // namespace
}  // namespace colossal::train::module_tiers_test
