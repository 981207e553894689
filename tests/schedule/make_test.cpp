// Options that cannot be scheduled, and the suggested changes.
#include "colossal/schedule/make.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "colossal/base/error.h"
#include "schedule/orders.h"

namespace colossal::schedule::make_test {
namespace {

using ::testing::HasSubstr;

std::string refusal(const Options& options) {
  try {
    make_schedule(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "pipeline");
    return error.message();
  }
  return "";
}

TEST(Options, SuggestsNames) {
  EXPECT_EQ(refusal({.name = "zero-buble-v"}), "unknown schedule `zero-buble-v`, did you mean `zero-bubble-v`?");
  EXPECT_THAT(refusal({.name = "fast"}), HasSubstr("unknown schedule `fast`; there are gpipe, 1f1b, "));
}

TEST(Options, NamesTheNearestLegalValues) {
  EXPECT_EQ(refusal({.name = "interleaved", .stages = 4, .micro_batches = 6}),
            "interleaved needs micro_batches divisible by the 4 ranks: got 6; nearest 4 or 8");
  EXPECT_EQ(refusal({.name = "interleaved", .stages = 4, .micro_batches = 3}),
            "interleaved needs micro_batches divisible by the 4 ranks: got 3; nearest 4");
  EXPECT_EQ(refusal({.name = "chimera", .stages = 5, .micro_batches = 8}),
            "chimera needs an even number of ranks: got 5; nearest 4 or 6");
  EXPECT_EQ(refusal({.name = "chimera", .stages = 3, .micro_batches = 8}),
            "chimera needs an even number of ranks: got 3; nearest 2 or 4");
  EXPECT_EQ(refusal({.name = "chimera", .stages = 4, .micro_batches = 7}),
            "chimera needs an even number of micro_batches, half for each direction: got 7; nearest 6 or 8");
  EXPECT_EQ(refusal({.name = "chimera", .stages = 4, .micro_batches = 1}),
            "chimera needs an even number of micro_batches, half for each direction: got 1; nearest 2");
  EXPECT_EQ(refusal({.name = "hanayo", .stages = 4, .micro_batches = 8, .chunks = 3}),
            "hanayo needs an even number of chunks, 2 per wave: got 3; nearest 2 or 4");
  EXPECT_EQ(refusal({.name = "v-half", .stages = 4, .micro_batches = 8, .chunks = 4}),
            "v-half has 2 chunks per rank: got 4; nearest 2, or use interleaved or hanayo");
  EXPECT_EQ(refusal({.name = "1f1b", .stages = 4, .micro_batches = 8, .chunks = 2}),
            "1f1b has 1 chunk per rank: got 2; nearest 1, or use interleaved or hanayo");
}

TEST(Options, RefusesMemoryLimitsThatAFamilyCannotKeep) {
  EXPECT_EQ(refusal({.name = "gpipe", .stages = 4, .micro_batches = 8, .memory_limit = 4}),
            "gpipe keeps the activations of every micro-batch: got memory_limit 4 for 8 micro_batches; use 1f1b");
  EXPECT_EQ(refusal({.name = "interleaved", .stages = 4, .micro_batches = 8, .memory_limit = 5}),
            "interleaved keeps 5.5 live activations: got memory_limit 5; use 1f1b or v-half");
  EXPECT_EQ(refusal({.name = "chimera", .stages = 4, .micro_batches = 8, .memory_limit = 1}),
            "chimera keeps one activation per direction: got memory_limit 1; nearest 2");
  EXPECT_EQ(refusal({.name = "1f1b", .stages = 4, .micro_batches = 8, .memory_limit = 0.5}),
            "memory_limit must hold at least 1 live activation: got 0.5");
}

TEST(Options, RefusesInvalidSizesAndCosts) {
  EXPECT_EQ(refusal({.name = "1f1b", .stages = 0}), "a pipeline needs at least 1 rank: got 0");
  EXPECT_EQ(refusal({.name = "1f1b", .micro_batches = 0}), "micro_batches must be at least 1: got 0");
  EXPECT_EQ(refusal({.name = "hanayo", .chunks = -1}), "chunks must be at least 1: got -1");
  EXPECT_EQ(refusal({.name = "1f1b", .costs = {.backward_weight = 0}}),
            "the cost of backward_weight must be a positive number: got 0");
  EXPECT_EQ(refusal({.name = "1f1b", .costs = {.forward = std::numeric_limits<double>::infinity()}}),
            "the cost of forward must be a positive number: got inf");
  EXPECT_EQ(refusal({.name = "1f1b", .costs = {.transfer = -1}}),
            "the cost of a transfer must not be negative: got -1");
  EXPECT_EQ(refusal({.name = "1f1b", .stages = 2, .costs = {.stage_weights = {1, 0}}}),
            "the weight of a stage must be a positive number: got 0");
  EXPECT_EQ(refusal({.name = "v-min", .stages = 2, .micro_batches = 2, .costs = {.stage_weights = {1, 1}}}),
            "v-min has 4 stages here: got 2 stage weights");
}

TEST(Options, RunsEveryScheduleOnOneRank) {
  for (const auto& family : families()) {
    SCOPED_TRACE(family.name);
    const Schedule schedule = make(family.name, 1, 3);
    for (const PipelineOp& step : schedule.ranks[0]) EXPECT_FALSE(is_send(step.action) || is_receive(step.action));
  }
}

TEST(Options, MakesEqualSchedulesFromEqualOptions) {
  const Options options{
      .name = "zero-bubble-v", .stages = 5, .micro_batches = 9, .costs = {.backward_input = 1.37, .transfer = 0.1}};
  EXPECT_EQ(make_schedule(options).ranks, make_schedule(options).ranks);
}

TEST(Options, GivesStagesWithoutASchedule) {
  EXPECT_EQ(placement_of({.name = "hanayo", .stages = 3, .micro_batches = 4, .chunks = 4}), Placement::zigzag(3, 4));
  EXPECT_EQ(placement_of({.name = "chimera", .stages = 4, .micro_batches = 4}).stages(), 4);
  EXPECT_THROW(placement_of({.name = "chimera", .stages = 3, .micro_batches = 4}), Error);
}

TEST(Options, DescribesFamilies) {
  std::set<std::string> names;
  for (const auto& family : families()) {
    EXPECT_TRUE(names.insert(family.name).second);
    EXPECT_GT(std::string(family.description).size(), 10u);
    const Schedule schedule = make(family.name, 2, 4);
    bool splits = false;
    for (const PipelineOp& step : schedule.ranks[0]) splits = splits || step.action == Action::BackwardInput;
    EXPECT_EQ(splits, family.splits_backward) << family.name;
  }
}

}  // namespace
}  // namespace colossal::schedule::make_test
