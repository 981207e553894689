// Training whose parameters, gradients and states are stored in host memory and on a disk. Results equal a run with all
// of them in memory, bitwise, under every policy and budget. Memory use never exceeds a budget.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/memory/account.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/zero_runs.h"

namespace colossal::train::tiers_test {
namespace {

run::Config in_tiers(run::Config config, const std::string& folder, int64_t host_of_a_rank,
                     const std::string& placement = "auto") {
  config.memory.disk = folder;
  config.memory.host = host_of_a_rank * config.parallel.ranks();
  config.memory.placement = placement;
  return config;
}

struct Tiers {
  memory::TieredStore::Counts counts;
  int64_t budget = 0;
};

/// The results of run(), and the transfers of rank 0's tiers.
Course run_in_tiers(const run::Config& config, int64_t steps, Tiers& tiers,
                    const models::ModelShape& shape = test::tiny_gpt2()) {
  Course result;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, shape);
    for (int64_t step = 0; step < steps; ++step) {
      const double loss = test::train_step(*engine, step, kText);
      if (world.rank() == 0) result.losses.push_back(loss);
      // The host budget covers all ranks of a machine; here each rank is a machine of its own.
      EXPECT_LE(engine->tiers()->counts().peak_host_bytes, config.memory.host / world.local_size());
    }
    if (world.rank() != 0) return;
    tiers = {engine->tiers()->counts(), config.memory.host / world.local_size()};
    for (const auto& t : engine->weights()) result.weights.push_back({t.name, t.value.clone(), t.spec, t.part});
  });
  return result;
}

/// Host bytes of a rank that hold all tensors, and the smallest budget for which a run of `config` is not refused.
struct Budgets {
  int64_t all = 0, min = 0;
};

Budgets budgets_of(const run::Config& config, const models::ModelShape& shape = test::tiny_gpt2()) {
  test::TemporaryFolder folder;
  Tiers tiers;
  run_in_tiers(in_tiers(config, folder.path(), 1 << 30), 1, tiers, shape);
  Budgets budgets{.all = tiers.counts.host_bytes};
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const std::string message =
        test::thrown_message([&] { initialize(world, in_tiers(config, folder.path(), 4096), shape); });
    EXPECT_THAT(message, testing::HasSubstr("is too small for the"));
    const size_t begin = message.find("works is \"") + 10;
    const int64_t least = parse_bytes(message.substr(begin, message.find('"', begin) - begin)).value_or(0);
    const std::lock_guard lock(mutex);
    budgets.min = std::max(budgets.min, least / world.local_size());
  });
  return budgets;
}

/// Returns `config` without tiers but with their arithmetic: parameters are gathered and released, gradients are summed
/// separately.
run::Config in_memory(run::Config config) {
  if (config.parallel.zero == 0) config.parallel.zero = 3, config.parallel.zero_group = 1;
  return config;
}

class TieredTraining : public testing::TestWithParam<Layout> {};

TEST_P(TieredTraining, EqualsTrainingInMemoryUnderEveryPolicyAndBudget) {
  const Layout layout = GetParam();
  run::Config config = config_of(layout);
  config.training.steps = 5;
  config.memory.recompute = layout.zero == 3 || layout.pipeline > 1 ? "block" : "none";
  config.training.accumulate = layout.pipeline == 1 && layout.data < 3 ? 2 : 1;
  const Course want = run(in_memory(config), 5);
  const Budgets budgets = budgets_of(config);
  const int64_t half = (budgets.min + budgets.all) / 2;
  ASSERT_LT(budgets.min, half);
  for (const auto& [placement, budget] : std::vector<std::pair<std::string, int64_t>>{
           {"auto", 2 * budgets.all}, {"auto", half}, {"auto", budgets.min}, {"lru", half}, {"static", half}}) {
    test::TemporaryFolder folder;
    Tiers tiers;
    const run::Config split = in_tiers(config, folder.path(), budget, placement);
    const Course got = run_in_tiers(split, 5, tiers);
    const std::string what = concat(layout.name, ", ", placement, ", ", budget);
    expect_equal(got, want, what);
    if (budget < budgets.all)
      EXPECT_GT(tiers.counts.bytes_read, 0) << what;
    else
      EXPECT_EQ(tiers.counts.bytes_read + tiers.counts.bytes_written, 0) << what;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the file has no name";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, TieredTraining,
    testing::Values(Layout{.name = "OneRank"}, Layout{.name = "OneRankBf16", .precision = "bf16"},
                    Layout{.name = "TwoReplicas", .data = 2}, Layout{.name = "Zero1", .zero = 1, .data = 2},
                    Layout{.name = "Zero2Bf16", .zero = 2, .data = 2, .precision = "bf16"},
                    Layout{.name = "Zero3Lion", .zero = 3, .data = 3, .optimizer = "lion"},
                    Layout{.name = "Zero3Tensor", .zero = 3, .data = 2, .tensor = 2, .precision = "bf16"},
                    Layout{.name = "Pipeline", .pipeline = 2},
                    Layout{.name = "Adam8bit", .precision = "bf16", .optimizer = "adam8bit"},
                    Layout{.name = "Muon", .zero = 3, .data = 2, .optimizer = "muon"},
                    Layout{.name = "GaLore", .optimizer = "galore"},
                    Layout{.name = "LambBf16", .zero = 3, .data = 2, .precision = "bf16", .optimizer = "lamb"},
                    Layout{.name = "PipelineZero3Bf16", .zero = 3, .data = 2, .pipeline = 2, .precision = "bf16"}),
    [](const auto& info) { return info.param.name; });

// One segment of such a parameter is updated at a time. Rules that need its whole matrix load only its gradients.
TEST(TieredTraining, NeedsNoBudgetForAWholeLargeParameter) {
  models::ModelShape shape = test::tiny_gpt2();
  shape.ffn = 256;
  const int64_t largest = shape.ffn * shape.hidden, values_and_gradients = 2 * 4 * largest;
  for (const Layout& layout : std::vector<Layout>{{.name = "adamw"},
                                                  {.name = "adam8bit", .optimizer = "adam8bit"},
                                                  {.name = "muon", .optimizer = "muon"},
                                                  {.name = "galore", .optimizer = "galore"},
                                                  {.name = "adafactor", .optimizer = "adafactor"},
                                                  {.name = "bf16", .precision = "bf16"},
                                                  {.name = "shared", .zero = 3, .data = 2}}) {
    run::Config config = config_of(layout);
    config.parallel.chunk_mib = 4.0 / 1024;  // 1024 elements of fp32
    const Course want = run(in_memory(config), 3, shape);
    const Budgets budgets = budgets_of(config, shape);
    // 8-bit moments are four tensors per piece, and small pieces are many. Each tensor takes a block of the disk.
    if (layout.optimizer != "adam8bit") EXPECT_LT(budgets.min, values_and_gradients) << layout.name;
    test::TemporaryFolder folder;
    Tiers tiers;
    expect_equal(run_in_tiers(in_tiers(config, folder.path(), budgets.min), 3, tiers, shape), want, layout.name);
  }
}

// In skipped steps the parameters were freed for gradients that are not used.
TEST(TieredTraining, ContinuesAfterSkippedSteps) {
  run::Config config = config_of({.precision = "fp16"});
  config.precision.loss_scale = 1 << 24;  // gradients overflow until it was halved several times
  expect_equal(run(config, 1), {run(config, 1).losses, run(config, 0).weights}, "the first step is skipped");
  const Course want = run(in_memory(config), 12);
  test::TemporaryFolder folder;
  Tiers tiers;
  expect_equal(run_in_tiers(in_tiers(config, folder.path(), budgets_of(config).min), 12, tiers), want, "fp16");
}

// Parameters and gradients that are not sharded stay in memory and do not count against the budget.
TEST(TieredTraining, NeedsABudgetOnlyForOffloadedTensors) {
  const run::Config config = config_of({.zero = 1, .data = 2});
  int64_t longest = 0;
  comm::run_ranks(2, [&](comm::World& world) {
    const auto engine = initialize(world, config, test::tiny_gpt2());
    for (const memory::Shard& shard : engine->store().shards())
      if (world.rank() == 0) longest = std::max(longest, shard.length());
  });
  EXPECT_EQ(budgets_of(config).min, 2 * memory::whole_blocks(4 * longest)) << "two moments";
}

TEST(TieredTraining, RefusesBudgetsBelowTheNamedMinimum) {
  const run::Config config = config_of({.pipeline = 2});  // the stages have unequal needs
  const int64_t least = budgets_of(config).min;
  test::TemporaryFolder folder;
  comm::run_ranks(2, [&](comm::World& world) {
    const std::string works = print_bytes(least * world.local_size());
    EXPECT_THAT(test::thrown_message(
                    [&] { initialize(world, in_tiers(config, folder.path(), least - 4096), test::tiny_gpt2()); }),
                testing::HasSubstr(concat("the smallest that works is \"", works, "\"")));
  });
}

// The error names the needs of later steps before any value is drawn, so no work is wasted.
TEST(TieredTraining, NamesTheSmallestHostWithoutADisk) {
  for (const Layout& layout : std::vector<Layout>{{.name = "one rank"},
                                                  {.name = "pipeline", .pipeline = 2},
                                                  {.name = "both", .zero = 3, .data = 2, .pipeline = 2},
                                                  {.name = "zero 2", .zero = 2, .data = 2},
                                                  {.name = "lamb", .precision = "bf16", .optimizer = "lamb"},
                                                  {.name = "muon", .precision = "bf16", .optimizer = "muon"},
                                                  {.name = "8 bits", .precision = "bf16", .optimizer = "adam8bit"}}) {
    run::Config config = config_of(layout);
    const Course want = run(in_memory(config), 2);
    config.memory.host = layout.ranks() * memory::kBlock;
    comm::run_ranks(layout.ranks(), [&](comm::World& world) {
      const auto said = [&](const run::Config& with) {
        return test::thrown_message([&] { initialize(world, with, test::tiny_gpt2()); });
      };
      const std::string message = said(config), words = "the smallest that works is \"";
      ASSERT_THAT(message, testing::HasSubstr("without memory.disk")) << layout.name;
      const size_t begin = message.find(words) + words.size();
      run::Config works = config;
      works.memory.host = parse_bytes(message.substr(begin, message.find('"', begin) - begin)).value();
      const auto engine = initialize(world, works, test::tiny_gpt2());
      for (int64_t step = 0; step < 2; ++step) {
        const double loss = test::train_step(*engine, step, kText);
        if (world.rank() == 0) EXPECT_EQ(loss, want.losses[static_cast<size_t>(step)]) << layout.name;
      }
      const int64_t budget = works.memory.host / world.local_size(), peak = engine->tiers()->counts().peak_host_bytes;
      EXPECT_LE(peak, budget) << layout.name;
      if (layout.name == "one rank") EXPECT_EQ(peak, budget) << "not a byte less would do";
      works.memory.host -= layout.ranks() * memory::kBlock;
      EXPECT_THAT(said(works), testing::HasSubstr(words)) << layout.name;
    });
  }
}

/// Returns the bytes of all chunks in fp32, and of the largest.
std::pair<int64_t, int64_t> chunk_bytes(memory::ChunkStore& store) {
  int64_t all = 0, largest = 0;
  for (const auto& chunk : store.chunks()) all += 4 * chunk->length(), largest = std::max(largest, 4 * chunk->length());
  return {all, largest};
}

// Directions of narrow gradients are offloaded like the gradients.
TEST(TieredTraining, KeepsDirectionsWithinItsBudget) {
  for (const std::string rule : {"lamb", "adafactor", "came", "muon", "galore"}) {
    run::Config config = config_of({.precision = "bf16", .optimizer = rule});
    config.parallel.chunk_mib = 4.0 / 1024;
    models::ModelShape shape = test::tiny_gpt2();
    shape.layers = 8, shape.hidden = 48, shape.head_dim = 12, shape.ffn = 96;
    const int64_t least = budgets_of(config, shape).min;
    const Course want = run(in_memory(config), 2, shape);
    test::TemporaryFolder folder;
    const run::Config small = in_tiers(config, folder.path(), least);
    comm::run_ranks(1, [&](comm::World& world) {
      const memory::Account account;
      const auto engine = initialize(world, small, shape);
      for (int64_t step = 0; step < 2; ++step)
        EXPECT_EQ(test::train_step(*engine, step, kText), want.losses[static_cast<size_t>(step)]) << rule;
      const auto [all, largest] = chunk_bytes(engine->store());
      // In addition an update uses several buffers as large as the shard it processes, among them its matrix.
      const int64_t beside = 8 * largest;
      ASSERT_LT(beside, all / 2);
      EXPECT_LE(account.usage().peak_of(memory::Kind::Host), least + beside) << rule << ", of " << all;
    });
  }
}

// Gradients are in memory only for chunks that backward currently processes. The others are offloaded until the next
// micro-batch.
TEST(TieredTraining, KeepsPipelineGradientsWithinItsBudget) {
  for (const std::string schedule : {"1f1b", "zero-bubble-h1", "interleaved"}) {
    run::Config config = config_of({.pipeline = 2});
    config.parallel.pipeline.schedule = schedule;
    config.parallel.pipeline.micro_batches = 4;
    config.parallel.chunk_mib = 16.0 / 1024;
    models::ModelShape shape = test::tiny_gpt2();
    shape.layers = 12;
    const Course want = run(in_memory(config), 2, shape);
    const int64_t least = budgets_of(config, shape).min;
    test::TemporaryFolder folder;
    const run::Config small = in_tiers(config, folder.path(), least);
    comm::run_ranks(2, [&](comm::World& world) {
      const memory::Account account;
      const auto engine = initialize(world, small, shape);
      for (int64_t step = 0; step < 2; ++step) {
        const double loss = test::train_step(*engine, step, kText);
        if (world.rank() == 0) EXPECT_EQ(loss, want.losses[static_cast<size_t>(step)]) << schedule;
      }
      const auto [all, largest] = chunk_bytes(engine->store());
      ASSERT_LT(3 * largest, all / 2);
      EXPECT_LE(account.usage().peak_of(memory::Kind::Gradients), 3 * largest) << schedule << ", of " << all;
      EXPECT_LE(engine->tiers()->counts().peak_host_bytes, least);
    });
  }
}

// Inputs of layers are as large as micro-batches, so their sizes are unknown when budgets are checked before the first
// step.
TEST(TieredTraining, RefusesInputsLargerThanItsBudgetInForward) {
  run::Config config = config_of({});
  config.memory.recompute = "block";
  config.training.batch_size = 192;
  const test::Text text{.rows = 192, .vocabulary = 37};
  const int64_t input = memory::whole_blocks(192 * 6 * test::tiny_gpt2().hidden * 4);
  ASSERT_LT(budgets_of(config).min, input);
  test::TemporaryFolder folder;
  comm::run_ranks(1, [&](comm::World& world) {
    const auto small = initialize(world, in_tiers(config, folder.path(), input - memory::kBlock), test::tiny_gpt2());
    small->tiers()->begin_record();
    EXPECT_THAT(test::thrown_message([&] { test::train_step(*small, 0, text); }),
                testing::HasSubstr(concat("\"", print_bytes(input), "\" per rank of this machine is the smallest")));
    const auto events = small->tiers()->end_record();
    EXPECT_TRUE(std::none_of(events.begin(), events.end(), [](const memory::TierEvent& event) {
      return event.kind == memory::TierEvent::Kind::Change;
    })) << "nothing was updated";
    const auto enough = initialize(world, in_tiers(config, folder.path(), input), test::tiny_gpt2());
    EXPECT_GT(test::train_step(*enough, 0, text), 0);
  });
}

TEST(TieredTraining, KeepsAllInTheHostWithoutADisk) {
  run::Config config = config_of({});
  config.memory.host = 1 << 30;
  Tiers tiers;
  expect_equal(run_in_tiers(config, 3, tiers), run(in_memory(config_of({})), 3), "host alone");
  config.memory.host = 64 << 10;
  comm::run_ranks(1, [&](comm::World& world) {
    EXPECT_THAT(test::thrown_message([&] { initialize(world, config, test::tiny_gpt2()); }),
                testing::HasSubstr("name a folder for the rest with memory.disk"));
  });
}

// Checkpoints do not store placement. They are saved and loaded chunk by chunk, regardless of where tensors are stored.
TEST(TieredTraining, LoadsCheckpointsOfOtherPlacements) {
  test::TemporaryFolder folder;
  run::Config config = config_of({});
  config.parallel.chunk_mib = 4.0 / 1024;  // some parameters are larger than a chunk
  const Budgets budgets = budgets_of(config);
  const run::Config whole = in_memory(config), small = in_tiers(config, folder / "a", budgets.min),
                    other = in_tiers(config, folder / "b", (budgets.min + budgets.all) / 2, "lru");
  const Course want = run(whole, 6);
  for (const auto& [first, then] :
       std::vector<std::pair<run::Config, run::Config>>{{whole, small}, {small, whole}, {small, other}}) {
    const std::string saved = test::empty_folder("tiers");
    Course got;
    comm::run_ranks(1, [&](comm::World& world) {
      {
        const auto engine = initialize(world, first, test::tiny_gpt2());
        for (int64_t step = 0; step < 3; ++step) got.losses.push_back(test::train_step(*engine, step, kText));
        test::save(*engine, saved);
      }
      const auto engine = initialize(world, then, test::tiny_gpt2());
      test::load(*engine, saved);
      for (int64_t step = 3; step < 6; ++step) got.losses.push_back(test::train_step(*engine, step, kText));
      for (const auto& t : engine->weights()) got.weights.push_back({t.name, t.value.clone(), t.spec, t.part});
      if (engine->tiers()) EXPECT_LE(engine->tiers()->counts().peak_host_bytes, then.memory.host);
    });
    expect_equal(got, want, concat(first.memory.host, " -> ", then.memory.host));
  }
}

}  // namespace
}  // namespace colossal::train::tiers_test
