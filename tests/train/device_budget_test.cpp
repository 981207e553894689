// Runs that memory.device is too small for are refused with what they need, and with the cheapest change that is
// enough.
#include "colossal/train/device_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/bytes.h"
#include "colossal/train/record_step.h"
#include "colossal/train/step_result.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::train::device_budget_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A run whose activations need most of the device.
ConfiguredRun wide_run() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.layers = 4, shape.hidden = 64, shape.head_dim = 16, shape.ffn = 256, shape.positions = 64;
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

}  // namespace
}  // namespace colossal::train::device_budget_test
