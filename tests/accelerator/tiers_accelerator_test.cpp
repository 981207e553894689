// Training on an accelerator whose parameters, gradients and states lie on the host and on a disk, and whose update is
// made on the host: the course is that of the CPU, and the budget moves no bit of it.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/tiered_home.h"
#include "colossal/train/engine.h"
#include "support/accelerator.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/ranks_values.h"
#include "support/temporary_folder.h"

namespace colossal::train::tiers_accelerator_test {
namespace {

constexpr test::Text kText{.vocabulary = 37};
constexpr int64_t kSteps = 4;

struct Course {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;  // of rank 0; or gradients
  memory::TieredHome::Counts counts;
  int64_t device_peak = 0;  // with memory.device
};

class TiersOnAccelerator : public test::AcceleratorTest {
 protected:
  static run::Config config_of(const std::string& optimizer, int64_t ranks, int64_t zero) {
    run::Config c = test::course_config();
    c.training.clip = 0.5;
    c.training.accumulate = 2;
    c.memory.recompute = "block";
    c.optimizer.name = optimizer;
    c.optimizer.warmup_steps = 0;
    // or rules would divide rounding by rounding
    if (optimizer.starts_with("adam") || optimizer == "lamb") c.optimizer.epsilon = 1e-3;
    c.optimizer.learning_rate = 0.01;
    if (optimizer == "galore") c.optimizer.rank = 5;
    c.parallel.data = test::has_accelerators_for(ranks) ? ranks : 1;
    c.parallel.zero = zero;
    return c;
  }
  /// `host`: bytes of a rank's; 0: no tiers.
  static Course run(run::Config config, bool there, int64_t host, const models::ModelShape& shape = test::tiny_gpt2()) {
    const test::TemporaryFolder folder;
    if (host > 0) {
      config.memory.host = host * config.parallel.ranks();
      config.memory.disk = folder.path();
    }
    Course course;
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      const at::Device device = there ? test::accelerator(world.local_rank()) : at::Device(at::kCPU);
      const auto engine = initialize(world, config, shape, device);
      for (int64_t step = 0; step < kSteps; ++step) {
        const double loss = test::train_step(*engine, 0, kText);
        if (world.rank() == 0) course.losses.push_back(loss);
      }
      if (world.rank() != 0) return;
      for (const auto& t : engine->weights()) course.weights.push_back(test::peek(t.value.clone()));
      if (!engine->tiers()) return;
      course.counts = engine->tiers()->counts();
      if (const auto use = engine->device_use()) course.device_peak = use->peak;
      EXPECT_LE(course.counts.peak_host_bytes, config.memory.host / world.local_size());
      for (const memory::Shard& shard : engine->store().shards()) {
        EXPECT_TRUE(shard.options().device().is_cpu()) << "where rules compute";
        EXPECT_TRUE(shard.lease({.values = memory::Access::Read})->values.is_pinned() || config.parallel.zero == 1);
      }
    });
    return course;
  }
  /// The loss of one step and the gradients of rank 0, nothing of which is updated. `device`: bytes; 0: as many as
  /// there are.
  static Course gradients(run::Config config, int64_t host, int64_t device) {
    const test::TemporaryFolder folder;
    config.memory.device = device;
    if (host > 0) config.memory.host = host * config.parallel.ranks(), config.memory.disk = folder.path();
    Course course;
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      const auto engine = initialize(world, config, test::tiny_gpt2(), test::accelerator(world.local_rank()));
      const comm::Mesh& mesh = engine->mesh();
      engine->zero_grad();
      const double loss = engine->train_step(test::batch_of(0, mesh.index("data"), mesh.size("data"), kText));
      if (world.rank() != 0) return;
      course.losses.push_back(loss);
      for (const memory::Shard& shard : engine->store().shards()) {
        const memory::Lease lease = shard.lease({.gradients = memory::Access::Read});
        for (const memory::Piece& piece : shard.pieces())
          course.weights.push_back(test::peek(lease->gradients.narrow(0, piece.offset, piece.part.size)));
      }
    });
    return course;
  }
  /// In fp64, where a fault costs more than half of the digits and rounding, however a rule amplifies it, does not.
  static void expect_same_course(const Course& got, const Course& want, const std::string& what) {
    const double limit = std::sqrt(std::numeric_limits<double>::epsilon());
    ASSERT_EQ(got.losses.size(), want.losses.size());
    EXPECT_LT(want.losses.back(), want.losses.front()) << "too little was learned to compare";
    for (size_t i = 0; i < got.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i] / want.losses[i], 1, limit) << what << ", step " << i;
  }
  static void expect_equal(const Course& got, const Course& want, const std::string& what) {
    EXPECT_EQ(got.losses, want.losses) << what;
    ASSERT_EQ(got.weights.size(), want.weights.size()) << what;
    for (size_t i = 0; i < got.weights.size(); ++i)
      EXPECT_TRUE(at::equal(got.weights[i], want.weights[i])) << what << ", weight " << i;
  }
  /// Bytes of a rank that hold all of a tiny model, and a part of it.
  static constexpr int64_t kAll = 64 << 20, kSome = 100 << 10;
};

// Rules that look at a shard alone, at norms, at sums over rows, and at whole matrices.
TEST_F(TiersOnAccelerator, LearnByEveryRuleWhatTheCpuLearns) {
  for (const std::string rule : {"adamw", "adam8bit", "lamb", "came", "galore", "muon"}) {
    const run::Config config = config_of(rule, rule == "muon" ? 2 : 1, 3);
    const Course got = run(config, true, kSome);
    expect_same_course(got, run(config, false, 0), rule);
    EXPECT_GT(got.counts.bytes_read, 0) << rule;
  }
}

TEST_F(TiersOnAccelerator, LearnWhatTheCpuLearnsWhateverIsSharedOut) {
  for (const int64_t zero : {0, 1, 2}) {
    const run::Config config = config_of("adamw", 2, zero);
    expect_same_course(run(config, true, kSome), run(config, false, 0), concat("zero ", zero));
  }
  run::Config config = config_of("adamw", 1, 0);
  config.training.accumulate = 1;
  config.parallel.tensor.size = test::has_accelerators_for(4) ? 2 : 1;
  config.parallel.pipeline.size = test::has_accelerators_for(4) ? 2 : 1;
  expect_same_course(run(config, true, kAll), run(config, false, 0), "tensor and pipeline");
}

TEST_F(TiersOnAccelerator, MoveNoBitInAnyFormat) {
  for (const std::string format : {"fp32", "bf16", "fp16"})
    for (const bool has_masters : {true, false}) {
      if (!has_masters && format != "bf16") continue;
      run::Config config = config_of("adamw", 2, 3);
      config.precision.mode = format;
      config.precision.masters = has_masters;
      const Course all = run(config, true, kAll);
      EXPECT_LT(all.losses.back(), all.losses.front()) << format;
      EXPECT_EQ(all.counts.bytes_read, 0) << format;
      expect_equal(run(config, true, all.counts.host_bytes * 3 / 4 / 4096 * 4096), all, format);
    }
}

// What is gathered, kept of blocks and added up over micro-batches and ranks; the update is the host's, which rounds
// otherwise.
TEST_F(TiersOnAccelerator, HaveTheGradientsOfTheAcceleratorToTheLastBit) {
  for (const std::string format : {"fp32", "bf16"}) {
    run::Config config = config_of("adamw", 2, 3);
    config.precision.mode = format;
    const Course want = gradients(config, 0, 0);
    expect_equal(gradients(config, kSome, 0), want, format);
    expect_equal(gradients(config, kSome, 1 << 20), want, format + ", a budget of the device");
  }
}

// What a step needs is measured by the allocator's peaks; a smaller device has fewer whole parameters at a time.
TEST_F(TiersOnAccelerator, ADeviceOfLimitedMemoryMovesNoBit) {
  run::Config config = config_of("adamw", 1, 3);
  config.precision.mode = "fp32";
  const Course want = run(config, true, kAll);
  config.memory.device = int64_t{1} << 36;
  const Course all = run(config, true, kAll);
  expect_equal(all, want, "all of it is whole");
  config.memory.device = int64_t{16} << 10;  // more than a chunk
  const std::string refused = test::thrown_message([&] { run(config, true, kAll); });
  const size_t begin = refused.find("works is \"") + 10;
  config.memory.device = parse_bytes(refused.substr(begin, refused.find('"', begin) - begin)).value_or(0);
  ASSERT_GT(config.memory.device, 0) << refused;
  const Course least = run(config, true, kAll);
  expect_equal(least, want, "the smallest");
  EXPECT_LE(least.device_peak, config.memory.device);
  EXPECT_GT(all.device_peak, least.device_peak);
}

TEST_F(TiersOnAccelerator, RefuseStatesOnTheDevice) {
  run::Config config = config_of("adamw", 1, 3);
  config.memory.placement = "static";
  config.memory.device = 1 << 20;
  config.memory.states_on_device = 0.5;
  EXPECT_THAT(test::thrown_message([&] { run(config, true, kAll); }), testing::HasSubstr("update on the host"));
}

}  // namespace
}  // namespace colossal::train::tiers_accelerator_test
