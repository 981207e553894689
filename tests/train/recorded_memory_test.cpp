// The memory of a step that is recorded from shapes, compared with what accounts count in the second step of a real run
// of the same config. Each rank of the real run also records itself, so several records run at once.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/account.h"
#include "colossal/memory/device_meter.h"
#include "colossal/memory/tiers/block_file.h"
#include "colossal/models/registry.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/run/objective.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/train/engine.h"
#include "colossal/train/record_step.h"
#include "colossal/train/step_result.h"
#include "support/parity.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::train::recorded_memory_test {
namespace {

/// Sizes whose activations are megabytes, so that a tensor that is left out exceeds 2 %.
models::ModelShape shape_of_steps() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.layers = 4, shape.hidden = 64, shape.head_dim = 16, shape.ffn = 256, shape.positions = 64;
  return shape;
}

constexpr int64_t kChunkBytes = int64_t{64} << 10;

struct Case {
  std::string name;
  int64_t data = 1, zero = 0, tensor = 1;
  std::string schedule{};  ///< of two stages; empty = no pipeline
  std::string recompute = "none";
  int64_t host = 0, device = 0;  ///< budgets of [memory]
  bool has_disk = false;
  std::string matmul = "mkl";
};

run::Config config_of(const Case& c, const std::string& folder) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = c.data;
  config.parallel.zero = c.zero;
  config.parallel.tensor.size = static_cast<int>(c.tensor);
  if (!c.schedule.empty()) {
    config.parallel.pipeline.size = 2;
    config.parallel.pipeline.schedule = c.schedule;
    config.parallel.pipeline.micro_batches = 4;
  }
  config.parallel.chunk_mib = static_cast<double>(kChunkBytes) / (1 << 20);  // several chunks
  config.precision.mode = "fp32";
  config.training.batch_size = 16;
  config.data.sequence = 32;
  config.memory.recompute = c.recompute;
  config.memory.host = c.host;
  config.memory.device = c.device;
  if (c.has_disk) config.memory.disk = folder;
  return config;
}

/// Returns the memory of the second step of a real rank.
StepMemory counted(comm::World& world, const run::Config& config, const models::ModelShape& shape) {
  memory::Account account;
  const auto engine = initialize(world, config, shape);
  const tensor::Batch batch = run::batch_of_ones(engine->objective(), config);
  for (int step = 0; step < 2; ++step) {
    if (step == 1) account.reset_peaks();
    engine->zero_grad();
    engine->train_step(batch);
    engine->step();
  }
  return step_memory(account.usage());
}

struct Rank {
  StepMemory real;
  RecordedStep recorded;
};

std::vector<Rank> ranks_of(const Case& c) {
  const test::TemporaryFolder folder;
  const run::Config config = config_of(c, folder.path());
  const models::ModelShape shape = shape_of_steps();
  std::vector<Rank> all(static_cast<size_t>(config.parallel.ranks()));
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(all.size()), [&](comm::World& world) {
    Rank mine{counted(world, config, shape), record_step({config, shape}, world.rank())};
    const std::lock_guard lock(mutex);
    all[static_cast<size_t>(world.rank())] = std::move(mine);
  });
  return all;
}

/// Products of one library in both runs.
class RecordedMemory : public testing::TestWithParam<Case> {
 protected:
  RecordedMemory() : before_(ops::matmul_choice()) {
    ops::set_matmul(ops::choose_matmul(ops::has_onednn() ? GetParam().matmul : "mkl"));
  }
  ~RecordedMemory() override { ops::set_matmul(before_); }

 private:
  const ops::MatmulChoice before_;
};

/// Tensors of these kinds are made by code that both runs share. Activations include tensors that LibTorch's operators
/// of the CPU make for themselves, which those of meta do not; the plan allows 2 % for them, or 64 KiB.
int64_t of_operators(int64_t bytes) { return std::max<int64_t>(bytes / 50, int64_t{64} << 10); }

/// The budget counts buffers without the block more in which each begins at a block. Chunks are at least half full.
void expect_host(const Case& c, int64_t recorded, int64_t real, const std::string& what) {
  if (c.host == 0) {
    EXPECT_EQ(recorded, 0) << what;
    EXPECT_EQ(real, 0) << what;
    return;
  }
  const int64_t buffers = 2 * recorded / kChunkBytes + 1;
  EXPECT_GT(recorded, 0) << what;
  EXPECT_LE(recorded, c.host + buffers * memory::kBlock) << what;
  if (c.has_disk) return;  // a real disk takes time, so another number of buffers may be in use at once
  EXPECT_NEAR(recorded, real, of_operators(real)) << what;
}

/// Returns the smallest memory.device that the refusal of `work` names; 0 = it is not refused.
template <class Work>
int64_t least_budget(const Work& work) {
  try {
    work();
  } catch (const RefusedStep& error) {
    return error.needed_bytes();
  }
  return 0;
}

/// A plan and a run name the same smallest budget, and a step within it counts no more for it.
TEST(RecordedBudget, EqualsThatOfTheRealStep) {
  const ops::MatmulChoice before = ops::matmul_choice();
  ops::set_matmul({});
  run::Config config = config_of({.name = "small", .device = 6 * kChunkBytes}, "");
  const models::ModelShape shape = shape_of_steps();
  const auto record = [&] { return record_step({config, shape}, 0).memory; };
  const auto train = [&] { comm::run_ranks(1, [&](comm::World& world) { counted(world, config, shape); }); };
  const int64_t recorded = least_budget(record), real = least_budget(train);
  EXPECT_GT(recorded, config.memory.device);
  EXPECT_EQ(recorded, real);
  config.memory.device = recorded;
  EXPECT_EQ(least_budget(train), 0);
  const StepMemory memory = record();
  EXPECT_LE(memory.budget_bytes, recorded);
  EXPECT_GT(memory.peak_bytes, memory.budget_bytes) << "the rows of the batch, which are there before the step";
  config.memory.device = recorded - 1;
  EXPECT_EQ(least_budget(record), recorded);
  ops::set_matmul(before);
}

/// Buffers that begin at a block of their own take more memory than counts for memory.host.
TEST(RecordedBudget, CountsHostMemoryAsTheBudgetDoes) {
  run::Config config = config_of({.name = "host", .host = int64_t{32} << 20}, "");
  const StepMemory memory = record_step({config, shape_of_steps()}, 0).memory;
  EXPECT_GT(memory.budget_host_bytes, 0);
  EXPECT_LE(memory.budget_host_bytes, config.memory.host);
}

TEST_P(RecordedMemory, EqualsThatOfTheRealStep) {
  const Case c = GetParam();
  const std::vector<Rank> ranks = ranks_of(c);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const StepMemory &real = ranks[i].real, &recorded = ranks[i].recorded.memory;
    const std::string what = concat(c.name, ", rank ", i);
    EXPECT_EQ(recorded.kinds.parameters, real.kinds.parameters) << what;
    EXPECT_EQ(recorded.kinds.gradients, real.kinds.gradients) << what;
    EXPECT_EQ(recorded.kinds.states, real.kinds.states) << what;
    EXPECT_NEAR(recorded.kinds.activations, real.kinds.activations, of_operators(real.kinds.activations)) << what;
    EXPECT_NEAR(recorded.kinds.buffers, real.kinds.buffers, of_operators(real.kinds.buffers)) << what;
    EXPECT_NEAR(recorded.peak_bytes, real.peak_bytes, real.peak_bytes / 50) << what;
    expect_host(c, recorded.kinds.host, real.kinds.host, what);
    // Fails if the account is switched off, for which the differences above would also be too large.
    EXPECT_GT(recorded.kinds.activations, int64_t{1} << 17) << what;
    EXPECT_GT(recorded.peak_bytes, recorded.kinds.activations) << what;
    EXPECT_GE(recorded.peak_event, 0) << what;
    EXPECT_LE(recorded.peak_event, static_cast<int64_t>(ranks[i].recorded.list.size())) << what;
  }
}

constexpr int64_t kHost = int64_t{64} << 20;      // for all tensors
constexpr int64_t kSmallHost = int64_t{2} << 20;  // parameters, gradients and states have more than 3 MB

INSTANTIATE_TEST_SUITE_P(
    Layouts, RecordedMemory,
    testing::Values(Case{.name = "one"}, Case{.name = "data2_zero0", .data = 2},
                    Case{.name = "data2_zero1", .data = 2, .zero = 1},
                    Case{.name = "data2_zero2", .data = 2, .zero = 2},
                    Case{.name = "data2_zero3", .data = 2, .zero = 3}, Case{.name = "tensor2", .tensor = 2},
                    Case{.name = "gpipe", .schedule = "gpipe"}, Case{.name = "one_f_one_b", .schedule = "1f1b"},
                    Case{.name = "block", .recompute = "block"}, Case{.name = "selective", .recompute = "selective"},
                    Case{.name = "onednn", .matmul = "onednn"},
                    Case{.name = "onednn_one_f_one_b", .schedule = "1f1b", .recompute = "block", .matmul = "onednn"},
                    Case{.name = "host", .host = kHost},
                    Case{.name = "disk", .recompute = "block", .host = kSmallHost, .has_disk = true}),
    [](const auto& info) { return info.param.name; });

// Backward is fullest at its beginning if all activations are kept, and the update needs none.
TEST(RecordedMemoryOfAStep, HasItsPeakBetweenForwardAndUpdate) {
  const RecordedStep step = record_step({config_of({.name = "one"}, ""), shape_of_steps()}, 0);
  ASSERT_GT(step.memory.peak_event, 0);
  ASSERT_LT(step.memory.peak_event, static_cast<int64_t>(step.list.size()));
  const RecordedStep block = record_step({config_of({.name = "one", .recompute = "block"}, ""), shape_of_steps()}, 0);
  EXPECT_LT(2 * block.memory.kinds.activations, step.memory.kinds.activations);
  EXPECT_EQ(block.memory.kinds.parameters, step.memory.kinds.parameters);
}

// The curve has the peaks of every kind, and its fullest point is where the peak is.
TEST(RecordedMemoryOfAStep, HasItsPeaksInTheCurve) {
  for (const Case& c : {Case{.name = "one"}, Case{.name = "data2_zero3", .data = 2, .zero = 3},
                        Case{.name = "host", .recompute = "block", .host = kHost}}) {
    const RecordedStep step = record_step({config_of(c, ""), shape_of_steps()}, 0);
    const StepMemory& memory = step.memory;
    ASSERT_FALSE(memory.curve.empty()) << c.name;
    EXPECT_LE(memory.curve.size(), kCurvePoints) << c.name;
    EXPECT_EQ(memory.curve.front().event, 0) << c.name;
    EXPECT_LE(memory.curve.back().event, static_cast<int64_t>(step.list.size())) << c.name;
    int64_t peak = 0, event = 0, host = 0;
    for (const StepMemory::Point& point : memory.curve) {
      host = std::max(host, point.kinds.host);
      if (point.kinds.device() <= peak) continue;
      peak = point.kinds.device();
      event = point.event;
    }
    EXPECT_EQ(peak, memory.peak_bytes) << c.name;
    EXPECT_EQ(host, memory.kinds.host) << c.name;
    // A point may stand for several moments.
    EXPECT_LE(event, memory.peak_event) << c.name;
    for (const StepMemory::Point& point : memory.curve)
      EXPECT_TRUE(point.event <= event || point.event > memory.peak_event) << c.name;
  }
}

TEST(RecordedMemoryOfAStep, MakesNoFile) {
  const std::string folder = test::TemporaryFolder().path() + "/scratch";
  const Case c{.name = "disk", .host = kHost, .has_disk = true};
  EXPECT_GT(record_step({config_of(c, folder), shape_of_steps()}, 0).memory.kinds.host, 0);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

// A budget of the device that is far too small is refused by the first step, as in a real run. Without counts on meta
// the trace would find that everything fits.
TEST(RecordedMemoryOfAStep, RefusesADeviceBudgetAsTheRealRun) {
  const Case c{.name = "device", .host = kHost, .device = int64_t{512} << 10};
  const auto refusal = [&](const auto& body) { return test::thrown_message(body); };
  std::string real;
  comm::run_ranks(
      1, [&](comm::World& world) { real = refusal([&] { counted(world, config_of(c, ""), shape_of_steps()); }); });
  const std::string recorded = refusal([&] { record_step({config_of(c, ""), shape_of_steps()}, 0); });
  EXPECT_THAT(real, testing::HasSubstr("the smallest that works is"));
  EXPECT_THAT(recorded, testing::HasSubstr("the smallest that works is"));
}

TEST(RecordedMemoryOfAStep, CountsOnlyShapesForAccelerators) {
  EXPECT_EQ(memory::counted_on(at::kCPU), memory::Counted::Memory);
  EXPECT_EQ(memory::counted_on(at::kMeta), memory::Counted::MemoryAndShapes);
  const tensor::MeantDevice device(at::kCUDA);
  EXPECT_EQ(memory::counted_on(at::kMeta), memory::Counted::Shapes);
  EXPECT_EQ(memory::counted_on(at::kCPU), memory::Counted::Memory);
}

TEST(RecordedMemoryOfAStep, RecordsAnAcceleratorWithoutOne) {
  run::Config config = config_of({.name = "cuda"}, "");
  config.run.device = "cuda";
  config.precision.mode = "bf16";
  const RecordedStep step = record_step({config, shape_of_steps()}, 0);
  EXPECT_GT(step.memory.kinds.activations, int64_t{1} << 17);
  EXPECT_GT(step.memory.peak_bytes, step.memory.kinds.activations);
}

}  // namespace
}  // namespace colossal::train::recorded_memory_test
