#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/parallel/pipeline/plan.h"
#include "colossal/parallel/pipeline/transfers.h"
#include "colossal/schedule/make.h"

namespace colossal::parallel::pipeline_plan_test {
namespace {

using testing::ElementsAre;

ModelCosts blocks(int64_t count, double last = 0) { return {0, std::vector<double>(count, 1), last}; }

/// Returns the number of consecutive rounds of connections if each starts once both of its ranks have made their
/// earlier ones.
int rounds_of(const schedule::Placement& placement) {
  std::vector<int> made(static_cast<size_t>(placement.ranks()), 0);
  for (const auto& [from, to] : ways_of(placement))
    made[static_cast<size_t>(from)] = made[static_cast<size_t>(to)] =
        std::max(made[static_cast<size_t>(from)], made[static_cast<size_t>(to)]) + 1;
  return *std::max_element(made.begin(), made.end());
}

TEST(WaysOfAPipeline, ConnectsInFewRoundsForAnyNumberOfStages) {
  using schedule::Placement;
  for (const int ranks : {4, 7, 64}) {
    EXPECT_EQ(rounds_of(Placement::looped(ranks, 1)), 4) << ranks;
    EXPECT_EQ(rounds_of(Placement::zigzag(ranks, 2)), 4) << ranks;
    EXPECT_EQ(rounds_of(Placement::looped(ranks, 3)), ranks % 2 == 0 ? 4 : 6) << ranks << ", the last to the first";
    EXPECT_EQ(ways_of(Placement::looped(ranks, 1)).size(), static_cast<size_t>(2 * (ranks - 1)));
  }
  EXPECT_EQ(rounds_of(Placement::opposed(8)), 4);
  EXPECT_EQ(rounds_of(Placement::looped(2, 1)), 2);
  EXPECT_THAT(ways_of(Placement::looped(3, 1)),
              ElementsAre(std::pair(0, 1), std::pair(1, 0), std::pair(1, 2), std::pair(2, 1)));
}

TEST(CutBlocks, MinimizesTheMostExpensiveStage) {
  EXPECT_THAT(cut_blocks(blocks(8), 4), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(cut_blocks(blocks(12, 5.45), 2), ElementsAre(0, 9, 12));  // GPT-2 124M: 9 against 8.45
  EXPECT_THAT(cut_blocks(blocks(12, 5.45), 4).back(), 12);
  EXPECT_EQ(cut_blocks(blocks(12, 5.45), 4)[3], 12);                    // the head has a separate stage
  EXPECT_THAT(cut_blocks({3, {1, 1, 1}, 0}, 2), ElementsAre(0, 0, 3));  // the embedding may have one, too
}

TEST(CutBlocks, LeavesNoInnerStageEmpty) {
  for (int64_t stages = 3; stages <= 9; ++stages) {
    const auto cuts = cut_blocks(blocks(9, 4), stages);
    for (int64_t k = 1; k + 1 < stages; ++k) EXPECT_LT(cuts[k], cuts[k + 1]) << stages;
  }
}

// Rank 0 of a V has the first stage and the head, so it gets fewer blocks.
TEST(CutBlocks, BalancesRanksWithSeveralStages) {
  const auto placement = schedule::Placement::zigzag(2, 2);
  const auto cuts = cut_blocks(blocks(12, 5.45), placement);
  const double first = static_cast<double>(cuts[1] + 12 - cuts[3]) + 5.45,
               second = static_cast<double>(cuts[3] - cuts[1]);
  EXPECT_LE(std::max(first, second), 9.0);
}

TEST(StageWeights, IsRelativeToTheMean) { EXPECT_THAT(stage_weights(blocks(4, 2), {0, 3, 4}), ElementsAre(1, 1)); }

TEST(ScheduleCosts, PutsTheHeadInForward) {
  const schedule::Costs costs = schedule_costs(blocks(4, 2), {0, 2, 4});  // forward 2 and 2 + 6, the rest 2 and 2
  EXPECT_THAT(costs.stage_weights, ElementsAre(1, 1));
  EXPECT_THAT(costs.forward_weights, ElementsAre(1, 4));
}

TEST(ScheduleCosts, GivesStepsToAStageWithoutBlocks) {
  for (const double weight : schedule_costs(blocks(2, 2), {0, 0, 2}).stage_weights) EXPECT_GT(weight, 0);
}

// GPT-2 124M: balancing rank 0, which has the head, may leave the first stage without a block.
TEST(MakePlan, WorksForEveryFamilyWithAnExpensiveHead) {
  for (const schedule::Family& family : schedule::families())
    for (const int64_t size : {2, 4}) {
      const PipelinePlan plan = make_plan({.size = size, .schedule = family.name, .micro_batches = 8}, blocks(12, 4.9));
      EXPECT_EQ(plan.cuts.back(), 12) << family.name;
      EXPECT_EQ(plan.stages(), plan.schedule.placement.stages()) << family.name;
    }
}

TEST(MicroBatches, UsesTheConfigOrTheLargestDivisor) {
  EXPECT_EQ(micro_batches_of({.size = 4, .micro_batches = 8}, 16, 1), 8);
  EXPECT_EQ(micro_batches_of({.size = 4}, 64, 1), 16);
  EXPECT_EQ(micro_batches_of({.size = 4}, 8, 1), 8);
  EXPECT_EQ(micro_batches_of({.size = 4}, 8, 2), 4);
  EXPECT_THROW(micro_batches_of({.size = 4, .micro_batches = 3}, 8, 1), Error);
}

}  // namespace
}  // namespace colossal::parallel::pipeline_plan_test
