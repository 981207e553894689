// The linear layers of a transformer layer send and keep the amounts of the published formulas, on every rank and in
// every mode.
#include "colossal/parallel/tensor/layer_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "support/thrown_message.h"

namespace colossal::parallel::layer_cost_test {
namespace {

struct Case {
  int64_t ranks;
  LayerSizes sizes;
};

class LayerCostOf : public testing::TestWithParam<Case> {};

TEST_P(LayerCostOf, EqualsThePublishedCostOnEveryRankInEveryMode) {
  const auto& [ranks, sizes] = GetParam();
  for (const TensorConfig& config : tensor_modes(ranks)) {
    SCOPED_TRACE(mode_name(config));
    const LayerCost formula = published_cost(config, sizes);
    const std::vector<LayerCost> measured = measured_cost(config, sizes);
    ASSERT_EQ(static_cast<int64_t>(measured.size()), ranks);
    for (const LayerCost& rank : measured) {
      EXPECT_DOUBLE_EQ(rank.forward, formula.forward);
      EXPECT_DOUBLE_EQ(rank.backward, formula.backward);
      EXPECT_EQ(rank.calls, formula.calls);
      EXPECT_DOUBLE_EQ(rank.parameter_bytes, formula.parameter_bytes);
      EXPECT_DOUBLE_EQ(rank.activation_bytes, formula.activation_bytes);
    }
  }
}
// Sizes that divide in every mode with that number of ranks.
constexpr LayerSizes kSmall{.hidden = 72, .heads = 72, .batch = 36, .sequence = 72};
constexpr LayerSizes kThirds{.hidden = 108, .heads = 108, .batch = 9, .sequence = 27};
constexpr LayerSizes kPowers{.hidden = 64, .heads = 64, .batch = 32, .sequence = 64};
INSTANTIATE_TEST_SUITE_P(Ranks, LayerCostOf,
                         testing::Values(Case{1, kSmall}, Case{2, kSmall}, Case{4, kSmall}, Case{8, kSmall},
                                         Case{9, kSmall}, Case{12, kSmall}, Case{18, kSmall}, Case{27, kThirds},
                                         Case{64, kPowers}),
                         [](const auto& info) { return "Of" + std::to_string(info.param.ranks); });

std::vector<std::string> names(int64_t ranks) {
  std::vector<std::string> all;
  for (const TensorConfig& config : tensor_modes(ranks)) {
    EXPECT_NO_THROW(tensor_axes(config));
    all.push_back(mode_name(config));
  }
  return all;
}

TEST(TensorModes, ListsAllModesThatTheRanksCanForm) {
  using testing::ElementsAre;
  EXPECT_THAT(names(1), ElementsAre("1d"));
  const auto with_1d = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"1d", "1d sequence", "1d sequence keep_gathered"});
    return more;
  };
  EXPECT_EQ(names(6), with_1d({}));
  EXPECT_EQ(names(9), with_1d({"2d"}));
  EXPECT_EQ(names(8), with_1d({"2.5d depth 2", "3d", "3d keep_gathered"}));
  EXPECT_EQ(names(64), with_1d({"2d", "2.5d depth 4", "2.5d depth 16", "3d", "3d keep_gathered"}));
}

// The coefficients of b*s*h and h*h at 64 ranks, worked out by hand.
TEST(PublishedCost, MatchesHandCalculationAtSixtyFourRanks) {
  const LayerSizes sizes{.hidden = 1024, .heads = 64, .batch = 32, .sequence = 256};
  const double state = 32.0 * 256 * 1024, square = 1024.0 * 1024;
  const auto sent = [&](const TensorConfig& config) {
    const LayerCost cost = published_cost(config, sizes);
    return cost.forward + cost.backward;
  };
  EXPECT_DOUBLE_EQ(sent({.size = 64, .mode = "1d"}), 7.875 * state);
  EXPECT_DOUBLE_EQ(sent({.size = 64, .sequence = true}), 9.84375 * state);
  EXPECT_DOUBLE_EQ(sent({.size = 64, .keep_gathered = true, .sequence = true}), 7.875 * state);
  EXPECT_DOUBLE_EQ(sent({.size = 64, .mode = "2d"}), 2.296875 * state + 3.9375 * square);
  EXPECT_DOUBLE_EQ(sent({.size = 64, .mode = "2.5d", .depth = 4}), 0.984375 * state + 7.875 * square);
  EXPECT_DOUBLE_EQ(sent({.size = 64, .mode = "3d", .keep_gathered = true}), 1.5 * state + 1.125 * square);
}

TEST(MeasuredCost, IncludesThePaddingOfHeads) {
  const LayerSizes sizes{.hidden = 72, .heads = 3, .batch = 2, .sequence = 2};  // 3 heads on 2 ranks: a fourth of zeros
  const TensorConfig config{.size = 2, .mode = "1d"};
  const LayerCost formula = published_cost(config, sizes), rank = measured_cost(config, sizes).at(1);
  EXPECT_DOUBLE_EQ(rank.parameter_bytes, formula.parameter_bytes * (4 * 4.0 / 3 + 8) / 12);
  EXPECT_DOUBLE_EQ(rank.forward, formula.forward);
}

TEST(MeasuredCost, RefusesSizesThatDoNotDivide) {
  const LayerSizes sizes{.hidden = 64, .heads = 16, .batch = 8, .sequence = 2};
  EXPECT_THAT(test::thrown_message([&] { measured_cost({.size = 9, .mode = "2d"}, sizes); }),
              testing::StartsWith("[2d] hidden must be divisible by the 3 ranks"));
  EXPECT_THAT(test::thrown_message([&] { measured_cost({.size = 64, .mode = "3d"}, sizes); }),
              testing::StartsWith("[3d] the rows of a batch must be divisible by the 16"));
  EXPECT_THAT(test::thrown_message([&] { measured_cost({.size = 4, .sequence = true}, sizes); }),
              testing::StartsWith("[1d] the tokens of a row (data.sequence) must be divisible by the 4"));
  EXPECT_THAT(test::thrown_message([&] { measured_cost({.size = 2, .mode = "1d"}, {.hidden = 64, .heads = 5}); }),
              testing::StartsWith("[model] hidden must be divisible by heads: got hidden 64, heads 5"));
}

}  // namespace
}  // namespace colossal::parallel::layer_cost_test
