// Plans of recomputation: published costs, every tree of small chains, budgets, and inputs in host memory.
#include "colossal/plan/rotor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace colossal::plan::rotor_test {
namespace {

/// Returns the chain of the golden values: `blocks` equal stages, and a loss that only has memory.
Chain equal_chain(int64_t blocks) {
  Chain chain{.output = 1};
  for (int64_t i = 0; i < blocks; ++i)
    chain.stages.push_back({.forward = 1, .backward = 2, .input = 1, .saved = 4, .backward_temporary = 1});
  chain.stages.push_back({.input = 1, .saved = 1, .backward_temporary = 1});
  return chain;
}

/// Returns a chain of different stages. Times are whole numbers, so that sums are exact in any order.
Chain random_chain(int64_t blocks, std::mt19937& random, bool has_host) {
  const auto from = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % (high - low + 1)); };
  Chain chain{.output = from(0, 2), .host_time_per_byte = has_host ? 1.0 : 0.0};
  for (int64_t i = 0; i <= blocks; ++i)
    chain.stages.push_back({.forward = static_cast<double>(from(1, 9)),
                            .backward = static_cast<double>(from(1, 9)),
                            .input = from(1, 4),
                            .forward_temporary = from(0, 5),
                            .saved_temporary = from(0, 3)});
  for (int64_t i = 0; i <= blocks; ++i) {
    ChainStage& stage = chain.stages[i];
    stage.saved = from(1, 9) + (i < blocks ? chain.stages[i + 1].input : 0);
    stage.backward_temporary = stage.input + from(0, 4);
  }
  return chain;
}

/// Returns all lists of segments of stages [first, last) that keep the last stage. An input may go to the host if only
/// the step holds it: if the stages before it are a segment.
std::vector<Segments> all_lists(int64_t first, int64_t last, bool has_host, bool is_after_segment = false) {
  if (first + 1 == last) return {{}};
  std::vector<Segments> lists = all_lists(first + 1, last, has_host);
  for (int64_t j = first + 1; j < last; ++j)
    for (const Segments& parts : all_lists(first, j, has_host))
      for (const Segments& rest : all_lists(j, last, has_host, true))
        for (int host = 0; host <= static_cast<int>(has_host && is_after_segment); ++host) {
          Segments list{{.first = first, .last = j, .is_on_host = host == 1, .parts = parts}};
          list.insert(list.end(), rest.begin(), rest.end());
          lists.push_back(list);
        }
  return lists;
}

void expect_fastest_of_all(const Chain& chain) {
  const auto stages = static_cast<int64_t>(chain.stages.size());
  std::vector<ChainRun> runs;
  for (const Segments& segments : all_lists(0, stages, chain.host_time_per_byte > 0))
    runs.push_back(run_chain(chain, segments));
  const int64_t whole = run_chain(chain, {}).peak;
  int64_t smallest = whole;
  for (const ChainRun& run : runs) smallest = std::min(smallest, run.peak);
  ASSERT_LE(whole, kSlots);  // a unit is a byte, so nothing is rounded
  for (int64_t budget = smallest - 1; budget <= whole; ++budget) {
    double best = std::numeric_limits<double>::infinity();
    for (const ChainRun& run : runs)
      if (run.peak <= budget) best = std::min(best, run.time);
    const auto plan = plan_recomputation(chain, budget);
    ASSERT_EQ(plan.has_value(), budget >= smallest) << budget;
    if (!plan) continue;
    EXPECT_EQ(plan->time, best) << budget;
    EXPECT_LE(plan->peak, budget);
  }
  EXPECT_EQ(smallest_budget(chain), smallest);
}

TEST(Rotor, HasGoldenTimes) {
  struct Golden {
    int64_t blocks;
    std::vector<int64_t> budgets;
    std::vector<double> times;
  };
  const std::vector<Golden> golden{
      {4, {8, 10, 12, 16, 20}, {19, 16, 15, 14, 12}},
      {8, {8, 10, 12, 16, 20, 24, 32, 40}, {53, 36, 32, 30, 29, 28, 26, 24}},
      {16, {8, 10, 12, 16, 20, 24, 32, 40, 64, 80}, {169, 82, 72, 63, 61, 60, 58, 56, 50, 48}},
  };
  for (const Golden& one : golden)
    for (size_t i = 0; i < one.budgets.size(); ++i) {
      const auto plan = plan_recomputation(equal_chain(one.blocks), one.budgets[i]);
      ASSERT_TRUE(plan) << one.blocks << " stages, budget " << one.budgets[i];
      EXPECT_EQ(plan->time, one.times[i]) << one.blocks << " stages, budget " << one.budgets[i];
      EXPECT_LE(plan->peak, one.budgets[i]);
    }
}

TEST(Rotor, FindsFastestOfAllTrees) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) expect_fastest_of_all(random_chain(1 + round % 4, random, false));
}

TEST(Rotor, FindsFastestOfAllTreesWithHost) {
  std::mt19937 random(2);
  for (int round = 0; round < 20; ++round) expect_fastest_of_all(random_chain(1 + round % 4, random, true));
}

TEST(Rotor, KeepsEverythingThatFits) {
  const Chain chain = equal_chain(8);
  const int64_t whole = run_chain(chain, {}).peak;
  EXPECT_TRUE(plan_recomputation(chain, whole)->segments.empty());
  EXPECT_FALSE(plan_recomputation(chain, whole - 1)->segments.empty());
}

TEST(Rotor, CountsGradientOfLogits) {
  Chain chain = equal_chain(8);
  const int64_t smallest = smallest_budget(chain);
  chain.stages.back().backward_temporary += 100;
  EXPECT_GE(smallest_budget(chain), 100);
  EXPECT_GT(smallest_budget(chain), smallest);
  const auto plan = plan_recomputation(chain, 110);
  ASSERT_TRUE(plan);
  EXPECT_LE(plan->peak, 110);
  EXPECT_GT(plan->time, 24);
}

TEST(Rotor, StaysWithinBudgetsOfManyBytes) {
  std::mt19937 random(3);
  for (int round = 0; round < 10; ++round) {
    Chain chain = random_chain(12, random, round % 2 == 1);
    chain.output *= 1000003;
    chain.host_time_per_byte /= 1000003;
    for (ChainStage& stage : chain.stages)
      for (int64_t* bytes :
           {&stage.input, &stage.saved, &stage.forward_temporary, &stage.saved_temporary, &stage.backward_temporary})
        *bytes *= 1000003;  // no multiple of a unit
    const int64_t whole = run_chain(chain, {}).peak, smallest = smallest_budget(chain);
    for (int64_t budget = smallest; budget < whole; budget += (whole - smallest) / 7 + 1) {
      const auto plan = plan_recomputation(chain, budget);
      ASSERT_TRUE(plan) << budget;
      EXPECT_LE(plan->peak, budget);
      EXPECT_EQ(plan->peak, run_chain(chain, plan->segments).peak);
    }
  }
}

bool uses_host(const Segments& segments) {
  return std::any_of(segments.begin(), segments.end(),
                     [](const Segment& segment) { return segment.is_on_host || uses_host(segment.parts); });
}

TEST(Rotor, UsesHostOnlyIfItIsFaster) {
  Chain chain = equal_chain(16);
  const double without = plan_recomputation(chain, 12)->time;
  chain.host_time_per_byte = 0.01;
  const auto quick = plan_recomputation(chain, 12);
  EXPECT_TRUE(uses_host(quick->segments));
  EXPECT_LT(quick->time, without);
  chain.host_time_per_byte = 1000;
  const auto slow = plan_recomputation(chain, 12);
  EXPECT_FALSE(uses_host(slow->segments));
  EXPECT_EQ(slow->time, without);
}

TEST(Rotor, GroupsStagesOfLongChains) {
  const Chain chain = equal_chain(301);
  const auto plan = plan_recomputation(chain, 200);
  ASSERT_TRUE(plan);
  EXPECT_LE(plan->peak, 200);
  ASSERT_FALSE(plan->segments.empty());
  EXPECT_LE(plan->segments.back().last, 301);
  // Every stage once more costs 301; a tree may repeat some twice.
  EXPECT_LE(plan->time, 3 * 301 + 2 * 301);
}

TEST(Rotor, RefusesDeepTrees) {
  // Without room for a second input, each stage is reached from the first one.
  const Chain chain = equal_chain(2 * kMaxDepth);
  EXPECT_FALSE(plan_recomputation(chain, 8));
  EXPECT_TRUE(plan_recomputation(chain, smallest_budget(chain)));
}

}  // namespace
}  // namespace colossal::plan::rotor_test
