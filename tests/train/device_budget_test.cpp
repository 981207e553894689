// Runs that memory.device is too small for are refused with what they need, and with the cheapest change that is
// enough.
#include "colossal/train/device_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/train/record_step.h"
#include "colossal/train/step_result.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::train::device_budget_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A run whose activations need most of the device.
ConfiguredRun wide_run(int64_t layers = 4) {
  models::ModelShape shape = test::tiny_gpt2();
  shape.layers = layers, shape.hidden = 64, shape.head_dim = 16, shape.ffn = 256, shape.positions = 64;
  run::Config config;
  config.run.device = "cpu";
  config.parallel.chunk_mib = 0.0625;
  config.data.sequence = 32;
  config.training.batch_size = 16;
  config.memory.device = int64_t{1} << 30;
  return {config, shape};
}

int64_t least_with(ConfiguredRun run, const std::string& recompute, int64_t accumulate = 1) {
  run.config.memory.recompute = recompute;
  run.config.training.accumulate = accumulate;
  return least_device_budget(run);
}

/// Returns the refusal by a device of that many bytes, of a run without memory.device.
std::string refusal_by(ConfiguredRun run, int64_t device, int64_t host = 0) {
  run.config.memory.device = 0;
  return test::thrown_message([&] { check_device_budget(run, {.device = device, .host = host}); });
}

std::string refusal(ConfiguredRun run, int64_t device) {
  run.config.memory.device = device;
  return test::thrown_message([&] { check_device_budget(run); });
}

TEST(DeviceBudget, FindsTheSmallestThatWorks) {
  ConfiguredRun run = wide_run();
  run.config.memory.device = least_device_budget(run);
  EXPECT_NO_THROW(record_step(run, 0));
  run.config.memory.device -= 1;
  EXPECT_THROW(record_step(run, 0), RefusedStep);
}

TEST(DeviceBudget, NamesTheCheapestChangeThatIsEnough) {
  const ConfiguredRun run = wide_run();
  const int64_t none = least_with(run, "none"), selective = least_with(run, "selective"),
                block = least_with(run, "block"), halves = least_with(run, "block", 2);
  ASSERT_GT(none, selective);
  ASSERT_GT(selective, block);
  ASSERT_GT(block, halves);
  EXPECT_EQ(refusal(run, none), "");
  EXPECT_EQ(refusal(run, none - 1),
            concat("[memory] device must be at least ", readable_at_least(none), ": got ", print_bytes(none - 1),
                   "; set memory.recompute = \"selective\", with which ", readable_at_least(selective), " suffice"));
  EXPECT_THAT(refusal(run, selective - 1), HasSubstr("set memory.recompute = \"block\", with which "));
  EXPECT_THAT(refusal(run, block - 1),
              AllOf(HasSubstr("memory.recompute = \"block\" and training.accumulate = 2, with which "),
                    HasSubstr(readable_at_least(halves) + " suffice")));
}

TEST(DeviceBudget, EqualsTheMemoryOfAnAcceleratorWithoutAKey) {
  ConfiguredRun run = wide_run();
  run.config.memory.device = 0;
  const auto need_of = [&](const char* recompute) {
    run.config.memory.recompute = recompute;
    return record_step(run, 0).memory.peak_bytes;
  };
  const int64_t selective = need_of("selective"), none = need_of("none");
  EXPECT_EQ(refusal_by(run, none), "");
  EXPECT_EQ(refusal_by(run, none - 1),
            concat("[memory] device must be at least ", readable_at_least(none), ": got ", readable_bytes(none - 1),
                   ", all that it has; set memory.recompute = \"selective\", with which ", readable_at_least(selective),
                   " suffice"));
  EXPECT_EQ(test::thrown_message([&] { check_device_budget(run); }), "") << "nothing is known of the device";
}

TEST(DeviceBudget, NamesTiersWhereNoSmallerActivationsSuffice) {
  ConfiguredRun run = wide_run();
  run.config.memory.recompute = "block";
  run.config.training.batch_size = 1;
  run.config.parallel.zero = 1;
  run.config.memory.device = 0;
  const int64_t peak = record_step(run, 0).memory.peak_bytes;
  EXPECT_THAT(refusal_by(run, peak - 1, int64_t{1} << 40),
              AllOf(HasSubstr("; set memory.device = \""), HasSubstr("MiB\" and parallel.zero = 3, with which "),
                    Not(HasSubstr("memory.disk"))));
  EXPECT_THAT(refusal_by(run, peak - 1, 1), HasSubstr("MiB\" and memory.disk = \"")) << "the host has no room";
  EXPECT_THAT(refusal_by(run, 1 << 20), HasSubstr("or a device with more memory"));
}

// All micro-batches of gpipe are in memory at once, so more of them need no less.
TEST(DeviceBudget, NamesASmallerBatchAtLast) {
  ConfiguredRun run = wide_run(2);
  run.config.parallel.pipeline = {.size = 2, .schedule = "gpipe", .micro_batches = 2};
  run.config.training.batch_size = 4;
  run.config.memory.recompute = "block";
  const auto least = [&](int64_t batch, int64_t micro_batches) {
    ConfiguredRun other = run;
    other.config.training.batch_size = batch;
    other.config.parallel.pipeline.micro_batches = micro_batches;
    return least_device_budget(other);
  };
  const int64_t smaller = least(2, 2);
  ASSERT_LT(smaller, least(4, 4));
  EXPECT_THAT(refusal(run, smaller),
              HasSubstr(concat("; set training.batch_size = 2, with which ", readable_at_least(smaller), " suffice")));
}

TEST(DeviceBudget, SplitsRowsIntoMoreMicroBatches) {
  ConfiguredRun run = wide_run();
  run.config.training.batch_size = 18;
  run.config.training.accumulate = 2;
  std::vector<int64_t> counts;
  for (const run::Config& config : in_more_micro_batches(run.config)) counts.push_back(config.training.accumulate);
  EXPECT_THAT(counts, testing::ElementsAre(6, 18));
  EXPECT_EQ(in_more_micro_batches(run.config, 1).size(), 1u);
}

}  // namespace
}  // namespace colossal::train::device_budget_test
