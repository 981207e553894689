// The measurement of `colossal bench experts`: the layer sends what its assignments need, and nothing else.
#include "colossal/cli/bench/expert_layer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/nn/recompute.h"
#include "colossal/parallel/expert/traffic.h"
#include "support/thrown_message.h"

namespace colossal::cli::expert_layer_test {
namespace {

using nn::Recompute;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr ExpertWorkload kSmallLayer{
    .hidden = 16, .ffn = 8, .experts = 8, .used = 3, .batch = 4, .sequence = 12, .rounds = 1};

/// Returns how many assignments each of `parts` runs of neighbouring experts has.
std::vector<int64_t> loads_of(const ExpertWorkload& work, int64_t parts) {
  std::vector<int64_t> loads(static_cast<size_t>(parts));
  for (const int64_t expert : chosen_experts(ExactInputs(work), work.used))
    ++loads[parallel::expert_rank(expert, work.experts, parts)];
  return loads;
}

double busiest_over_mean(const ExpertWorkload& work, int64_t parts) {
  const std::vector<int64_t> loads = loads_of(work, parts);
  return static_cast<double>(*std::max_element(loads.begin(), loads.end()) * parts) /
         static_cast<double>(work.assignments());
}

TEST(ExpertLayer, SendsTheFormulaOnEveryNumberOfRanks) {
  for (const int64_t ranks : {1, 2, 4}) {
    for (const bool is_recomputed : {false, true}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, recompute " << is_recomputed);
      const ExpertLayerCost cost =
          measured_expert_layer(kSmallLayer, ranks, is_recomputed ? Recompute::Block : Recompute::None);
      EXPECT_EQ(cost.sent, parallel::hidden_states_sent(cost.remote, kSmallLayer.hidden, is_recomputed));
      EXPECT_EQ(cost.other, 0) << "all traffic is in a column";
      EXPECT_EQ(cost.remote > 0, ranks > 1);
      EXPECT_EQ(cost.counts > 0, ranks > 1);
      EXPECT_EQ(cost.sums > 0, ranks > 1);
      EXPECT_EQ(cost.calls > 0, ranks > 1);
    }
  }
}

// Counts: two for each other node, one for each assignment to another node, and one for each expert of another rank of
// the node.
TEST(ExpertLayer, SendsTheFormulaByWayOfNodes) {
  constexpr int64_t kRanks = 4;
  for (const int64_t node : {2, 4}) {
    for (const bool is_recomputed : {false, true}) {
      SCOPED_TRACE(testing::Message() << "nodes of " << node << ", recompute " << is_recomputed);
      ExpertWorkload work = kSmallLayer;
      work.node = node;
      const ExpertLayerCost cost =
          measured_expert_layer(work, kRanks, is_recomputed ? Recompute::Block : Recompute::None);
      EXPECT_EQ(cost.sent, parallel::hidden_states_sent(cost.node_rows, work.hidden, is_recomputed));
      EXPECT_EQ(cost.other, 0) << "all traffic is in a column";
      const int64_t counts =
          kRanks * 2 * (kRanks / node - 1) + cost.node_rows.to_nodes + kRanks * (node - 1) * work.experts / kRanks;
      EXPECT_EQ(cost.counts, (is_recomputed ? 2 : 1) * counts);
      EXPECT_EQ(cost.node_rows.tokens < cost.node_rows.to_nodes, node == 2) << "tokens use several experts of a node";
    }
  }
}

// Each rank sends every other rank one count for each of its experts, in both passes of a recomputed block. The second
// pass uses the choices of the first one, so it sums nothing.
TEST(ExpertLayer, SendsCountsInEveryPassAndSumsOnce) {
  for (const int64_t ranks : {2, 4}) {
    const ExpertLayerCost once = measured_expert_layer(kSmallLayer, ranks, Recompute::None);
    const ExpertLayerCost twice = measured_expert_layer(kSmallLayer, ranks, Recompute::Block);
    EXPECT_EQ(once.counts, kSmallLayer.experts * (ranks - 1));
    EXPECT_EQ(twice.counts, 2 * once.counts);
    EXPECT_EQ(twice.sums, once.sums);
    EXPECT_EQ(once.remote, twice.remote);
  }
}

// One division of counts of assignments, which are exact: half a unit of rounding in each of the two results.
TEST(ExpertLayer, ReportsTheLoadsOfThePlainChoice) {
  for (const int64_t ranks : {1, 4}) {
    const ExpertLayerCost cost = measured_expert_layer(kSmallLayer, ranks, Recompute::None);
    EXPECT_DOUBLE_EQ(cost.expert_load, busiest_over_mean(kSmallLayer, kSmallLayer.experts));
    EXPECT_DOUBLE_EQ(cost.rank_load, busiest_over_mean(kSmallLayer, ranks));
  }
}

TEST(ChosenExperts, TakesLargestLogitsAndLowerExpertsOfEqualOnes) {
  ExactInputs inputs(kSmallLayer);
  inputs.x = at::tensor({1.0F, 0.0F, 0.0F, 1.0F, 1.0F, 1.0F}).view({1, 3, 2});
  inputs.router = at::tensor({0.5F, 2.0F, 1.5F, 1.0F, 0.5F, 2.0F, 1.5F, 0.5F}).view({4, 2});
  // Logits: 0.5, 1.5, 0.5, 1.5; 2, 1, 2, 0.5; 2.5, 2.5, 2.5, 2.
  EXPECT_THAT(chosen_experts(inputs, 3), ElementsAre(1, 3, 0, 0, 2, 1, 0, 1, 2));
}

TEST(ExactInputs, HaveLogitsThatFloatsHoldExactly) {
  for (const int64_t hidden : {1, 16, 100, 4096}) {
    const ExactInputs inputs({.hidden = hidden, .batch = 1, .sequence = 4});
    const at::Tensor x = inputs.x.view({-1, hidden});
    const at::Tensor exact = at::matmul(x.to(at::kDouble), inputs.router.to(at::kDouble).t());
    EXPECT_TRUE(at::equal(exact.to(at::kFloat).to(at::kDouble), exact)) << hidden;
    EXPECT_TRUE(at::equal(at::matmul(x.flip(1), inputs.router.flip(1).t()).to(at::kDouble), exact)) << hidden;
  }
}

TEST(ExpertLayer, RefusesSizesThatDoNotDivide) {
  const auto refusal = [](const ExpertWorkload& work, int64_t ranks) {
    return test::thrown_message([&] { measured_expert_layer(work, ranks, Recompute::None); });
  };
  EXPECT_THAT(refusal(kSmallLayer, 3),
              HasSubstr("[experts] the rows of a batch must be divisible by the ranks: got 4 rows on 3 ranks"));
  EXPECT_THAT(refusal({.experts = 6, .batch = 4}, 4),
              HasSubstr("[experts] the experts must be divisible by the ranks: got 6 experts on 4 ranks"));
  EXPECT_THAT(refusal({.batch = 4, .node = 3}, 4), HasSubstr("[parallel] expert.node must be at least 2 and divide"));
  EXPECT_THAT(refusal({.experts = 2, .used = 3}, 1),
              HasSubstr("[experts] the used experts must be from 1 to all experts: got 3 of 2"));
}

}  // namespace
}  // namespace colossal::cli::expert_layer_test
