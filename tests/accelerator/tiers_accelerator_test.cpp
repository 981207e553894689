// Training on an accelerator whose parameters, gradients and optimizer states are stored on the host and on a disk. The
// update runs on the host, except for shards that the device has room for. The losses must equal the losses on the CPU.
// If the update runs on the host, the budget must not change any bit of them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/train/engine.h"
#include "support/accelerator.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::train::tiers_accelerator_test {
namespace {

constexpr test::Text kText{.vocabulary = 37};
constexpr int64_t kSteps = 4;

struct Course {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;  // weights of rank 0, or its gradients
  memory::TieredStore::Counts counts;
  DeviceUse device;                    // memory use of the device, if memory.device is set
  int64_t to_last = 0, from_last = 0;  // bytes copied to and from the device in the last step
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
    // A large epsilon, because the rules would otherwise divide rounding errors by rounding errors.
    if (optimizer.starts_with("adam") || optimizer == "lamb") c.optimizer.epsilon = 1e-3;
    c.optimizer.learning_rate = 0.01;
    if (optimizer == "galore") c.optimizer.rank = 5;
    c.parallel.data = test::has_accelerators_for(ranks) ? ranks : 1;
    c.parallel.zero = zero;
    return c;
  }
  /// Trains on `config`. `host` is the budget of a rank on the host in bytes; 0 = no tiers.
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
        const DeviceUse before = engine->device_use().value_or(DeviceUse{});
        const double loss = test::train_step(*engine, 0, kText);
        if (world.rank() != 0) continue;
        course.losses.push_back(loss);
        course.device = engine->device_use().value_or(DeviceUse{});
        course.to_last = course.device.copied_to - before.copied_to;
        course.from_last = course.device.copied_from - before.copied_from;
      }
      if (world.rank() != 0) return;
      for (const auto& t : engine->weights()) course.weights.push_back(test::peek(t.value.clone()));
      if (!engine->tiers()) return;
      course.counts = engine->tiers()->counts();
      EXPECT_LE(course.counts.peak_host_bytes, config.memory.host / world.local_size());
      if (course.device.states > 0) return;
      for (const memory::Shard& shard : engine->store().shards()) {
        EXPECT_TRUE(shard.options().device().is_cpu()) << "where rules compute";
        EXPECT_TRUE(shard.lease({.values = memory::Access::Read})->values.is_pinned() || config.parallel.zero == 1);
      }
    });
    return course;
  }
  /// Returns the loss of one step and the gradients of rank 0, without an update. `device` is the budget in bytes; 0 =
  /// all memory of the device.
  static Course gradients(run::Config config, int64_t host, int64_t device) {
    const test::TemporaryFolder folder;
    config.memory.device = device;
    if (host > 0) config.memory.host = host * config.parallel.ranks(), config.memory.disk = folder.path();
    Course course;
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      const auto engine = initialize(world, config, test::tiny_gpt2(), test::accelerator(world.local_rank()));
      engine->zero_grad();
      const double loss = engine->train_step(test::own_batch(*engine, 0, kText));
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
  /// Compares two courses in fp64. The limit is half of the digits: an error costs more, and rounding costs less, even
  /// amplified by a rule.
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
  /// Returns `config` with a fraction `share` of the optimizer states on a device with enough memory.
  static run::Config on_device(run::Config config, double share) {
    config.memory.placement = "static";
    config.memory.device = kWide;
    config.memory.states_on_device = share;
    return config;
  }
  /// Returns the smallest budget of the device, in bytes, as named in the error of the first step.
  static int64_t min_budget_of(run::Config config) {
    config.memory.device = int64_t{16} << 10;  // more than one chunk
    const std::string refused = test::thrown_message([&] { run(config, true, kAll); });
    const size_t begin = refused.find("works is \"") + 10;
    const int64_t least = parse_bytes(refused.substr(begin, refused.find('"', begin) - begin)).value_or(0);
    EXPECT_GT(least, 0) << refused;
    return least;
  }
  static constexpr int64_t kWide = int64_t{1} << 36;
  /// Budgets of a rank in bytes: one that holds all of a tiny model, and one that holds a part of it.
  static constexpr int64_t kAll = 64 << 20, kSome = 100 << 10;
};

// The rules read shards alone, norms, sums over rows, and whole matrices.
TEST_F(TiersOnAccelerator, TrainsLikeTheCpuByEveryRule) {
  for (const std::string rule : {"adamw", "adam8bit", "lamb", "came", "galore", "muon"}) {
    const run::Config config = config_of(rule, rule == "muon" ? 2 : 1, 3);
    const Course got = run(config, true, kSome);
    expect_same_course(got, run(config, false, 0), rule);
    EXPECT_GT(got.counts.bytes_read, 0) << rule;
  }
}

TEST_F(TiersOnAccelerator, TrainsLikeTheCpuUnderEveryLayout) {
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

TEST_F(TiersOnAccelerator, KeepsEveryBitInEveryFormat) {
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

// The test compares gradients that are gathered, recomputed and summed over micro-batches and ranks. It makes no
// update, because the host rounds differently.
TEST_F(TiersOnAccelerator, EqualsGradientsWithoutTiersBitwise) {
  for (const std::string format : {"fp32", "bf16"}) {
    run::Config config = config_of("adamw", 2, 3);
    config.precision.mode = format;
    const Course want = gradients(config, 0, 0);
    expect_equal(gradients(config, kSome, 0), want, format);
    expect_equal(gradients(config, kSome, 1 << 20), want, format + ", a budget of the device");
  }
}

// The allocator's peaks measure the memory of a step. A smaller device has fewer whole parameters at a time.
TEST_F(TiersOnAccelerator, KeepsEveryBitOnADeviceOfLimitedMemory) {
  run::Config config = config_of("lamb", 1, 3);  // its update always runs on the host
  config.precision.mode = "fp32";
  const Course want = run(config, true, kAll);
  config.memory.device = kWide;
  const Course all = run(config, true, kAll);
  expect_equal(all, want, "all of it is whole");
  EXPECT_EQ(all.device.states, 0);
  config.memory.device = min_budget_of(config);
  const Course least = run(config, true, kAll);
  expect_equal(least, want, "the smallest");
  EXPECT_LE(least.device.peak, config.memory.device);
  EXPECT_GT(all.device.peak, least.device.peak);
}

// Some shards are updated on the device and the others on the host. Norms and clipping combine both.
TEST_F(TiersOnAccelerator, UpdatesStatesOnTheDevice) {
  for (const std::string clip_by : {"norm", "value", "largest"}) {
    run::Config config = config_of("adamw", 2, 3);
    config.memory.recompute = "none";  // the inputs of layers are offloaded and loaded again
    config.training.clip_by = clip_by;
    if (clip_by == "value") config.training.clip = 0.01;
    const Course want = run(config, false, 0);
    const auto with = [&](double share) {
      const Course got = run(on_device(config, share), true, kAll);
      expect_same_course(got, want, concat(clip_by, ", a share of ", share));
      return got;
    };
    const Course half = with(0.5);
    if (clip_by != "norm") continue;
    const Course none = with(0), all = with(1);
    EXPECT_EQ(none.device.states, 0);
    EXPECT_GT(half.device.states, all.device.states / 4);
    EXPECT_LE(half.device.states, (all.device.states + 1) / 2);
    EXPECT_LT(half.to_last, none.to_last);
    EXPECT_LT(half.from_last, none.from_last);
    EXPECT_GT(half.to_last, 0);
    EXPECT_EQ(all.to_last + all.from_last, 0);
    EXPECT_EQ(all.counts.host_bytes, 0);
  }
}

TEST_F(TiersOnAccelerator, FillsTheMarginOfTheDeviceWithTheFirstShards) {
  run::Config config = config_of("adamw", 1, 3);
  const Course want = run(config, false, 0);
  config.memory.device = kWide;
  const Course all = run(config, true, kAll);
  expect_same_course(all, want, "all of them");
  EXPECT_EQ(all.counts.host_bytes, 0);
  // The budget is chosen so that, of nine tenths of it, half of the states or a little more remain after the peak and
  // one chunk.
  config.memory.device = (min_budget_of(config) + all.device.states / 2 + (int64_t{16} << 10)) * 10 / 9;
  const Course some = run(config, true, kAll);
  expect_same_course(some, want, "some of them");
  EXPECT_GT(some.device.states, 0);
  EXPECT_LT(some.device.states, all.device.states);
  EXPECT_LE(some.device.peak, config.memory.device);
}

// The same operators run on the same device as without tiers. Clipping is off, because clipping by a norm would use the
// norm of the host in the first step.
TEST_F(TiersOnAccelerator, KeepsEveryBitWithAllStatesOnTheDevice) {
  for (const auto& [rule, format, has_masters] :
       {std::tuple("lion", "fp32", true), std::tuple("adamw", "bf16", true), std::tuple("adamw", "bf16", false)}) {
    run::Config config = config_of(rule, 2, 3);
    config.training.clip = 0;
    config.precision.mode = format;
    config.precision.masters = has_masters;
    expect_equal(run(on_device(config, 1), true, kAll), run(config, true, 0), concat(rule, " in ", format));
  }
}

TEST_F(TiersOnAccelerator, SavesStatesOfTheDeviceInCheckpoints) {
  const test::TemporaryFolder folder;
  run::Config config = on_device(config_of("adamw", 1, 3), 0.5);
  config.training.clip = 0;
  std::vector<double> straight, resumed;
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config, test::tiny_gpt2(), test::accelerator(0));
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step == 2) test::save(*engine, folder.path());
      straight.push_back(test::train_step(*engine, step, kText));
    }
    const auto next = initialize(world, config, test::tiny_gpt2(), test::accelerator(0));
    test::load(*next, folder.path());
    for (int64_t step = 2; step < kSteps; ++step) resumed.push_back(test::train_step(*next, step, kText));
    EXPECT_GT(next->device_use()->states, 0);
  });
  EXPECT_THAT(resumed, testing::ElementsAre(straight[2], straight[3]));
}

TEST_F(TiersOnAccelerator, RefusesStatesOnTheDeviceForRulesThatUpdateOnTheHost) {
  for (const std::string rule : {"lamb", "galore", "muon", "came"})
    EXPECT_THAT(test::thrown_message([&] { run(on_device(config_of(rule, 1, 3), 0.5), true, kAll); }),
                testing::HasSubstr(rule + " updates them on the host"));
}

}  // namespace
}  // namespace colossal::train::tiers_accelerator_test
