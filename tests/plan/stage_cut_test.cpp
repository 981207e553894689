// The cut into pipeline stages equals the best of all contiguous partitions.
#include "colossal/plan/stage_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "colossal/base/error.h"

namespace colossal::plan::stage_cut_test {
namespace {

/// Seconds and memory of each possible stage, at random. They need not be sums over blocks.
struct RandomStages {
  int64_t blocks, stages, micro_batches;
  double share_that_fits;
  std::vector<double> seconds;
  std::vector<bool> fit;

  RandomStages(std::mt19937& random, int64_t blocks, int64_t stages, double share)
      : blocks(blocks), stages(stages), micro_batches(1 + static_cast<int64_t>(random() % 9)), share_that_fits(share) {
    const auto count = static_cast<size_t>(stages * (blocks + 1) * (blocks + 1));
    for (size_t i = 0; i < count; ++i) {
      seconds.push_back(static_cast<double>(random() % 100));  // whole numbers: sums have no rounding
      fit.push_back(static_cast<double>(random() % 1000) < 1000 * share);
    }
  }
  size_t at(int64_t stage, int64_t from, int64_t to) const {
    return static_cast<size_t>((stage * (blocks + 1) + from) * (blocks + 1) + to);
  }
  StageProblem problem() const {
    return {.blocks = blocks,
            .stages = stages,
            .micro_batches = micro_batches,
            .seconds = [this](int64_t k, int64_t from, int64_t to) { return seconds[at(k, from, to)]; },
            .fits = [this](int64_t k, int64_t from, int64_t to) { return fit[at(k, from, to)]; }};
  }
  /// Returns the seconds of a step; -1 if the cut is not legal or does not fit.
  double price(const std::vector<int64_t>& layers) const {
    double sum = 0, slowest = 0;
    int64_t from = 0;
    for (int64_t k = 0; k < stages; ++k) {
      const int64_t to = from + layers[static_cast<size_t>(k)];
      const bool may_be_empty = stages > 1 && (k == 0 || k + 1 == stages);
      if ((to == from && !may_be_empty) || !fit[at(k, from, to)]) return -1;
      sum += seconds[at(k, from, to)];
      slowest = std::max(slowest, seconds[at(k, from, to)]);
      from = to;
    }
    return sum + static_cast<double>(micro_batches - 1) * slowest;
  }
};

/// Returns the least price of all ways to give `left` blocks to the stages from `stage` on; -1 if there is none.
double least_price(const RandomStages& stages, std::vector<int64_t>& layers, int64_t stage, int64_t left) {
  if (stage + 1 == stages.stages) {
    layers[static_cast<size_t>(stage)] = left;
    return stages.price(layers);
  }
  double least = -1;
  for (int64_t count = 0; count <= left; ++count) {
    layers[static_cast<size_t>(stage)] = count;
    const double price = least_price(stages, layers, stage + 1, left - count);
    if (price >= 0 && (least < 0 || price < least)) least = price;
  }
  return least;
}

TEST(StageCut, EqualsBruteForce) {
  std::mt19937 random(5);
  int without_cut = 0;
  for (int64_t blocks = 1; blocks <= 8; ++blocks)
    for (int64_t stages = 1; stages <= 5; ++stages)
      for (const double share : {1.0, 0.7, 0.3}) {
        const RandomStages given(random, blocks, stages, share);
        std::vector<int64_t> layers(static_cast<size_t>(stages));
        const double want = least_price(given, layers, 0, blocks);
        const auto cut = cut_stages(given.problem());
        ASSERT_EQ(cut.has_value(), want >= 0) << blocks << " blocks, " << stages << " stages";
        without_cut += !cut;
        if (!cut) continue;
        EXPECT_EQ(cut->seconds, want) << blocks << " blocks, " << stages << " stages";
        EXPECT_EQ(given.price(cut->layers), want);
      }
  EXPECT_GT(without_cut, 0);  // so the limit of memory was at work
}

TEST(StageCut, BalancesEqualBlocksAndSparesTheEnds) {
  // The head costs as much as two blocks.
  const auto seconds = [](int64_t stage, int64_t from, int64_t to) {
    return static_cast<double>(to - from) + (stage == 3 ? 2 : 0);
  };
  const auto cut = cut_stages({.blocks = 14, .stages = 4, .micro_batches = 8, .seconds = seconds});
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->layers, (std::vector<int64_t>{4, 4, 4, 2}));
  EXPECT_EQ(cut->seconds, 16 + 7 * 4);
}

TEST(StageCut, MovesBlocksAwayFromStagesWithoutMemory) {
  // Stage k keeps stages - k micro-batches in flight, so the first one has room for the fewest blocks.
  const auto seconds = [](int64_t, int64_t from, int64_t to) { return static_cast<double>(to - from); };
  const auto fits = [](int64_t stage, int64_t from, int64_t to) { return (to - from) * (4 - stage) <= 8; };
  const auto cut = cut_stages({.blocks = 12, .stages = 4, .micro_batches = 4, .seconds = seconds, .fits = fits});
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->layers.front(), 2);
  EXPECT_EQ(std::accumulate(cut->layers.begin(), cut->layers.end(), int64_t{0}), 12);
  EXPECT_EQ(*std::max_element(cut->layers.begin(), cut->layers.end()), 4);
}

TEST(StageCut, RefusesNothingToCut) {
  EXPECT_THROW(cut_stages({.blocks = 0, .stages = 1}), Error);
  EXPECT_THROW(cut_stages({.blocks = 1, .stages = 0}), Error);
}

}  // namespace
}  // namespace colossal::plan::stage_cut_test
