// Training on a device with a memory budget equals a run without budget, bitwise, under every policy and budget. Memory
// use never exceeds the budget. A refusal names the smallest budget that works, and that one works.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/memory/account.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/zero_runs.h"

namespace colossal::train::device_tier_test {
namespace {

struct Case {
  std::string name;
  Layout layout;
  std::string recompute = "none";
  int64_t accumulate = 1;
  bool llama = false, disk = false;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

models::ModelShape shape_of(const Case& c) { return c.llama ? test::tiny_llama() : test::tiny_gpt2(); }

run::Config config_of(const Case& c, const std::string& folder) {
  run::Config config = train::config_of(c.layout);
  config.training.steps = 4;
  config.training.accumulate = c.accumulate;
  config.memory.recompute = c.recompute;
  if (c.disk) config.memory.disk = folder;
  return config;
}

/// The same config without tiers, with the arithmetic of tiers.
run::Config in_memory(run::Config config) {
  config.memory.device = 0;
  config.memory.disk.clear();
  if (config.parallel.zero == 0) config.parallel.zero = 3, config.parallel.zero_group = 1;
  return config;
}

/// Transfers and memory of rank 0 in the last step, and the sizes of its chunks for formulas.
struct Moved {
  int64_t in = 0, out = 0;  // bytes copied to and from the device
  int64_t parts = 0;        // bytes of its parts of all chunks, all of which are trained
  int64_t states = 0;       // bytes of states on the device
  memory::TieredStore::Counts tiers{};
};

Course run_on_device(const run::Config& config, const models::ModelShape& shape, int64_t steps, Moved& moved) {
  Course result;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, shape);
    for (int64_t step = 0; step < steps; ++step) {
      const DeviceUse before = *engine->device_use();
      double loss = 0;
      {
        const memory::Account account;  // sees every allocation of the test
        loss = test::train_step(*engine, step, kText);
        const int64_t peak = before.states + account.usage().peak_device;
        EXPECT_LE(peak, config.memory.device) << "step " << step << ", rank " << world.rank();
        EXPECT_EQ(engine->device_use()->peak, peak);
      }
      if (world.rank() != 0) continue;
      result.losses.push_back(loss);
      const DeviceUse now = *engine->device_use();
      moved = {.in = now.copied_to - before.copied_to,
               .out = now.copied_from - before.copied_from,
               .states = now.states,
               .tiers = engine->tiers()->counts()};
    }
    if (world.rank() != 0) return;
    for (const auto& chunk : engine->store().chunks()) moved.parts += chunk->bytes() / chunk->sharers().size();
    for (const auto& t : engine->weights()) result.weights.push_back({t.name, t.value.clone(), t.spec, t.part});
  });
  return result;
}

int64_t bytes_behind(const std::string& message, const std::string& words) {
  const size_t begin = message.find(words);
  EXPECT_NE(begin, std::string::npos) << message;
  if (begin == std::string::npos) return 0;
  const size_t first = message.find_first_not_of('"', begin + words.size());
  return parse_bytes(message.substr(first, message.find_first_of("\" ", first) - first)).value_or(0);
}

/// Returns the smallest device budget that the first step of a run with a smaller one names, on all ranks.
int64_t min_budget_of(run::Config config, const models::ModelShape& shape) {
  std::mutex mutex;
  std::vector<int64_t> named;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    run::Config small = config;
    small.memory.device = 16;
    small.memory.device = bytes_behind(test::thrown_message([&] { initialize(world, small, shape); }), "alone has ");
    const auto engine = initialize(world, small, shape);
    const int64_t least =
        bytes_behind(test::thrown_message([&] { test::train_step(*engine, 0, kText); }), "the smallest that works is ");
    EXPECT_EQ(engine->steps_done(), 0);
    const std::lock_guard lock(mutex);
    named.push_back(least);
  });
  EXPECT_THAT(named, testing::Each(named.front()));
  return named.front();
}

class DeviceTier : public testing::TestWithParam<Case> {};

TEST_P(DeviceTier, EqualsTrainingInMemoryUnderEveryPolicyAndBudget) {
  const Case c = GetParam();
  const test::TemporaryFolder folder;
  run::Config config = config_of(c, folder.path());
  const models::ModelShape shape = shape_of(c);
  const Course want = run(in_memory(config), 4, shape);
  const int64_t least = min_budget_of(config, shape);
  constexpr int64_t kAll = 1 << 30;
  for (const auto& [placement, bytes] : std::vector<std::pair<std::string, int64_t>>{{"auto", least},
                                                                                     {"auto", least + least / 2},
                                                                                     {"lru", least + least / 4},
                                                                                     {"static", least + least / 4},
                                                                                     {"static", kAll},
                                                                                     {"auto", kAll}}) {
    config.memory.device = bytes;
    config.memory.placement = placement;
    Moved moved;
    const std::string what = concat(c.name, ", ", placement, ", ", bytes);
    expect_equal(run_on_device(config, shape, 4, moved), want, what);
    if (bytes < kAll)
      EXPECT_GT(moved.in, 0) << what;
    else if (c.recompute == "none" && placement == "static") {
      EXPECT_EQ(moved.in, moved.parts) << what << ": parameters come once";
      if (c.accumulate == 1) EXPECT_EQ(moved.out, moved.parts) << what << ": gradients go once";
    } else if (c.recompute == "none") {
      EXPECT_EQ(moved.in + moved.out, 0) << what << ": all is there";
    }
    if (bytes == least || placement == "static") EXPECT_EQ(moved.states, 0) << what;
    if (bytes == kAll && placement == "auto") EXPECT_GT(moved.states, 0) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, DeviceTier,
    testing::Values(
        Case{.name = "OneRank", .layout = {}},
        Case{.name = "OneRankBf16OnDisk", .layout = {.precision = "bf16"}, .recompute = "block", .disk = true},
        Case{.name = "Zero3Llama", .layout = {.zero = 3, .data = 2}, .accumulate = 2, .llama = true},
        Case{.name = "Zero3TensorBf16", .layout = {.zero = 3, .data = 2, .tensor = 2, .precision = "bf16"}},
        Case{.name = "PipelineLlama", .layout = {.pipeline = 2}, .recompute = "block", .llama = true},
        Case{.name = "Adam8bit", .layout = {.precision = "bf16", .optimizer = "adam8bit"}},
        Case{.name = "GaLoreBf16", .layout = {.precision = "bf16", .optimizer = "galore"}},
        Case{.name = "Fp16", .layout = {.precision = "fp16"}}),
    [](const auto& info) { return info.param.name; });

// Tensors that are stored on the device take no host memory.
TEST(DeviceTier, AddsItsBudgetToTheHosts) {
  const Case c{.name = "", .layout = {.precision = "bf16"}, .disk = true};
  const test::TemporaryFolder folder;
  run::Config config = config_of(c, folder.path());
  const models::ModelShape shape = shape_of(c);
  const Course want = run(in_memory(config), 4, shape);
  config.memory.device = min_budget_of(config, shape);
  Moved all, alone, both;
  config.memory.host = 1 << 30;
  run_on_device(config, shape, 2, all);
  config.memory.host = all.tiers.host_bytes * 3 / 4;
  run_on_device(config, shape, 4, alone);
  EXPECT_GT(alone.tiers.disk_bytes, 0);
  config.memory.device = 3 * config.memory.device;
  expect_equal(run_on_device(config, shape, 4, both), want, "both");
  EXPECT_EQ(both.tiers.disk_bytes, 0) << "of " << both.states << " on the device";
  EXPECT_GT(both.states, alone.tiers.disk_bytes);
}

TEST(DeviceTier, StoresAStaticShareOfStates) {
  const Case c{.name = "", .layout = {.zero = 3, .data = 2}};
  run::Config config = config_of(c, "");
  const models::ModelShape shape = shape_of(c);
  const Course want = run(in_memory(config), 4, shape);
  config.memory.placement = "static";
  config.memory.device = 1 << 30;
  config.memory.states_on_device = 1;
  Moved all, half;
  expect_equal(run_on_device(config, shape, 4, all), want, "all");
  EXPECT_EQ(all.in + all.out, 0);
  config.memory.states_on_device = 0.5;
  expect_equal(run_on_device(config, shape, 4, half), want, "half");
  EXPECT_LE(half.states, (all.states + 1) / 2);
  EXPECT_GT(half.states, all.states / 4);
  const int64_t least = min_budget_of(config, shape);
  config.memory.device = least;
  Moved smallest;
  expect_equal(run_on_device(config, shape, 4, smallest), want, "the smallest");
  EXPECT_EQ(smallest.states, half.states);
}

// With rules for matrices, a rank that has the vectors of a chunk has more states. All ranks must still make the same
// plan.
TEST(DeviceTier, PlansAlikeForDifferentStates) {
  const Case c{.name = "", .layout = {.zero = 3, .data = 2}};
  run::Config config = config_of(c, "");
  config.optimizer.name = "muon";
  const models::ModelShape shape = shape_of(c);
  const Course want = run(in_memory(config), 3, shape);
  const int64_t least = min_budget_of(config, shape);
  for (const int64_t quarters : {5, 6, 7, 8, 10, 12}) {
    config.memory.device = least * quarters / 4;
    Moved moved;
    expect_equal(run_on_device(config, shape, 3, moved), want, concat("device ", config.memory.device));
  }
}

// Batches of the evaluation are as large as a micro-batch. They use the gather order that training steps recorded.
TEST(DeviceTier, EvaluatesBetweenSteps) {
  const Case c{.name = "", .layout = {.zero = 3, .data = 2}};
  run::Config config = config_of(c, "");
  const models::ModelShape shape = shape_of(c);
  const auto course = [&](const run::Config& with) {
    std::vector<double> found;
    comm::run_ranks(2, [&](comm::World& world) {
      const auto engine = initialize(world, with, shape);
      for (int64_t step = 0; step < 4; ++step) {
        const double loss = test::train_step(*engine, step, kText);
        const Evaluation evaluation = engine->evaluate(test::own_batch(*engine, 100 + step, kText));
        if (world.rank() == 0) found.insert(found.end(), {loss, evaluation.sums.at(0)});
      }
    });
    return found;
  };
  const std::vector<double> want = course(in_memory(config));
  config.memory.device = min_budget_of(config, shape);
  EXPECT_EQ(course(config), want);
}

// Without a host budget, the host memory is as large as transfers need.
TEST(DeviceTier, TrainsWithADiskOnly) {
  const Case c{.name = "", .layout = {.data = 2}, .recompute = "block", .disk = true};
  const test::TemporaryFolder folder;
  run::Config config = config_of(c, folder.path());
  config.parallel.chunk_mib = 0.001;
  comm::run_ranks(2, [&](comm::World& world) {
    const auto engine = initialize(world, config, shape_of(c));
    for (int64_t step = 0; step < 2; ++step) test::train_step(*engine, step, kText);
    const memory::TieredStore::Counts counts = engine->tiers()->counts();
    EXPECT_GT(counts.disk_bytes, counts.host_bytes) << "most lies on the disk";
    EXPECT_FALSE(engine->device_use()) << "the device has no budget";
  });
  expect_equal(run(config, 2), run(in_memory(config), 2), "the disk alone");
}

TEST(DeviceTier, RefusesUnshardedParameters) {
  const auto refused = [](const auto& change) {
    run::Config config = train::config_of({.zero = 3, .data = 2});
    config.memory.device = 1 << 30;
    change(config);
    return test::thrown_message([&] { config.validate(); });
  };
  using testing::HasSubstr;
  EXPECT_EQ(refused([](run::Config&) {}), "");
  EXPECT_THAT(refused([](run::Config& c) { c.parallel.zero = 1; }), HasSubstr("set parallel.zero = 3"));
  EXPECT_THAT(refused([](run::Config& c) { c.parallel.max_gathered_mib = 1; }),
              HasSubstr("max_gathered_mib = 1 in addition"));
  EXPECT_THAT(refused([](run::Config& c) { c.parallel.reshard_after_forward = false; }),
              HasSubstr("reshard_after_forward = false in addition"));
  EXPECT_THAT(refused([](run::Config& c) { c.memory.states_on_device = 0.5; }),
              HasSubstr("states_on_device needs device and placement = \"static\""));
}

}  // namespace
}  // namespace colossal::train::device_tier_test
