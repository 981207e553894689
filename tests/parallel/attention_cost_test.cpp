// Attention of sequences that are split over ranks sends, keeps and computes the amounts of the formulas. This holds
// on every rank and in every mode, also for grouped queries and lengths that do not divide.
#include "colossal/parallel/sequence/attention_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "support/thrown_message.h"

namespace colossal::parallel::attention_cost_test {
namespace {

class AttentionCostOf : public testing::TestWithParam<int64_t> {
 protected:
  static void expect_measured(const AttentionSizes& sizes) {
    for (const SequenceConfig& config : sequence_modes(GetParam())) {
      SCOPED_TRACE(concat(mode_name(config), ", ", sizes.tokens, " tokens, heads ", sizes.heads, "/", sizes.kv_heads));
      const std::vector<AttentionCost> formula = published_cost(config, sizes), measured = measured_cost(config, sizes);
      ASSERT_EQ(static_cast<int64_t>(measured.size()), GetParam());
      for (size_t rank = 0; rank < measured.size(); ++rank) {
        SCOPED_TRACE(concat("rank ", rank));
        EXPECT_DOUBLE_EQ(measured[rank].forward, formula[rank].forward);
        EXPECT_DOUBLE_EQ(measured[rank].backward, formula[rank].backward);
        EXPECT_DOUBLE_EQ(measured[rank].between_nodes, formula[rank].between_nodes);
        EXPECT_EQ(measured[rank].calls, formula[rank].calls);
        EXPECT_EQ(measured[rank].activation_bytes, formula[rank].activation_bytes);
        EXPECT_DOUBLE_EQ(measured[rank].operations, formula[rank].operations);
      }
    }
  }
};

TEST_P(AttentionCostOf, EqualsTheFormulasOnEveryRankInEveryMode) {
  expect_measured({.batch = 2, .tokens = 48, .heads = 24, .kv_heads = 24, .head_dim = 4});
  expect_measured({.batch = 1, .tokens = 48, .heads = 24, .kv_heads = 3, .head_dim = 8, .causal = false});
}

// 53 is prime. With 4 key-value heads, some of 3 and 6 ranks read more heads than others.
TEST_P(AttentionCostOf, EqualsTheFormulasForGroupedQueriesAndOddLengths) {
  for (const int64_t kv_heads : {1, 2, 4})
    expect_measured({.batch = 2, .tokens = 53, .heads = 24, .kv_heads = kv_heads, .head_dim = 4});
}
INSTANTIATE_TEST_SUITE_P(Ranks, AttentionCostOf, testing::Values(1, 2, 3, 4, 6, 8),
                         [](const auto& info) { return "Of" + std::to_string(info.param); });

std::vector<double> values(const std::vector<AttentionCost>& ranks, double (*value)(const AttentionCost&)) {
  std::vector<double> all;
  for (const AttentionCost& cost : ranks) all.push_back(value(cost));
  return all;
}

// Worked out by hand, in units of a hidden state of all tokens (b s h), for forward and backward together.
TEST(PublishedAttentionCost, MatchesHandCalculationAtEightRanks) {
  const AttentionSizes sizes{.batch = 2, .tokens = 1024, .heads = 16, .kv_heads = 16, .head_dim = 8};
  const auto sent = [](const AttentionCost& c) { return (c.forward + c.backward) / (4.0 * 2 * 1024 * 16 * 8); };
  const auto of = [&](const SequenceConfig& config) { return values(published_cost(config, sizes), sent); };
  EXPECT_THAT(of({.size = 8, .mode = "gather"}), testing::Each(3.5));
  EXPECT_THAT(of({.size = 8, .mode = "ulysses"}), testing::Each(0.875));
  EXPECT_THAT(of({.size = 8, .mode = "ring"}), testing::Each(1.75 + 3.75));
  EXPECT_THAT(of({.size = 8, .mode = "ring-self-attention"}), testing::Each(5.25));
  // 8 (U-1)/U^2 / R of the exchange, (6R-4)/R / U of the ring
  EXPECT_THAT(of({.size = 8, .mode = "usp", .ulysses = 2}), testing::Each(0.5 + 2.5));
  EXPECT_THAT(of({.size = 8, .mode = "usp", .ulysses = 4}), testing::Each(0.75 + 1));
}

TEST(PublishedAttentionCost, SplitsOperationsEquallyAmongRanks) {
  for (const SequenceConfig& config : sequence_modes(4))
    EXPECT_THAT(values(published_cost(config, {.tokens = 64}), [](const AttentionCost& c) { return c.operations; }),
                testing::Each(12.0 * 16 * 64 * (64 * 65 / 2) / 4))
        << mode_name(config);
}

TEST(SequenceModesOf, ListsAllModesThatTheRanksCanForm) {
  const auto names = [](int64_t ranks) {
    std::vector<std::string> all;
    for (const SequenceConfig& config : sequence_modes(ranks)) all.push_back(mode_name(config));
    return all;
  };
  using testing::IsSupersetOf;
  EXPECT_THAT(names(6),
              IsSupersetOf({"gather", "ulysses", "ring", "ring node 2", "ring node 6", "usp ulysses 2",
                            "usp ulysses 2 node 2", "usp ulysses 3", "usp ulysses 3 node 6", "ring-self-attention"}));
  EXPECT_THAT(names(6), testing::Not(testing::Contains("usp ulysses 2 node 3"))) << "a node holds whole groups";
  EXPECT_THAT(names(3), testing::Not(testing::Contains(testing::StartsWith("usp"))));
}

TEST(MeasuredAttentionCost, RefusesSizesThatDoNotFit) {
  using testing::HasSubstr;
  EXPECT_THAT(test::thrown_message([] { measured_cost({.size = 2, .mode = "ring"}, {.heads = 12, .kv_heads = 5}); }),
              HasSubstr("key-value heads must divide the attention heads: got 5 of 12"));
  EXPECT_THAT(test::thrown_message([] { measured_cost({.size = 4, .mode = "ring"}, {.tokens = 3}); }),
              HasSubstr("must have a token of each row: got rows of 3"));
  EXPECT_THAT(test::thrown_message([] { measured_cost({.size = 2, .mode = "ulysses"}, {.heads = 9, .kv_heads = 9}); }),
              HasSubstr("the 9 attention heads of a rank must be divisible by the 2 ranks"));
}

}  // namespace
}  // namespace colossal::parallel::attention_cost_test
