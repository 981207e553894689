// The formulas of the traffic of a mixture of experts, against counts by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/parallel/expert/traffic.h"
#include "support/thrown_message.h"

namespace colossal::parallel::expert_traffic_test {
namespace {

using testing::HasSubstr;

TEST(ExpertTraffic, CountsAssignmentsToOtherRanks) {
  // Four tokens, two experts each, of four experts. With two ranks, tokens 0 and 1 and experts 0 and 1 are on rank 0.
  const std::vector<int64_t> chosen{0, 1, 2, 3, 2, 1, 3, 2};
  EXPECT_EQ(remote_assignments(chosen, 2, 4, 1), 0);
  EXPECT_EQ(remote_assignments(chosen, 2, 4, 2), 3) << "token 1 twice, token 2 once";
  // With four ranks, token t and expert t are on rank t.
  EXPECT_EQ(remote_assignments(chosen, 2, 4, 4), 5) << "1; 2, 3; 1; 2";
}

TEST(ExpertTraffic, AssignsNeighbouringExpertsToRanks) {
  EXPECT_EQ(expert_rank(2, 6, 2), 0);
  EXPECT_EQ(expert_rank(3, 6, 2), 1);
  EXPECT_EQ(expert_rank(5, 6, 6), 5);
}

TEST(ExpertTraffic, SendsHiddenStatesFourOrSixTimes) {
  EXPECT_EQ(hidden_states_sent(256, 64, false), 65536);
  EXPECT_EQ(hidden_states_sent(256, 64, true), 98304);
  EXPECT_EQ(hidden_states_sent(0, 64, true), 0);
}

TEST(ExpertTraffic, CountsRowsOfBothHops) {
  // Four ranks in two nodes; token t and experts 2 t and 2 t + 1 are on rank t.
  const std::vector<int64_t> chosen{
      0, 4, 6,  // rank 0: node 1 once for two assignments; expert 6 is at the other position
      2, 3, 4,  // rank 1: node 1 once; expert 4 is at the other position
      4, 5, 7,  // rank 2: expert 7 is at the other position of its own node
      0, 1, 2,  // rank 3: node 0 once for three assignments; experts 0 and 1 are at the other position
  };
  const NodeRows rows = node_rows(chosen, 3, 8, 4, 2);
  EXPECT_EQ(rows.tokens, 3);
  EXPECT_EQ(rows.to_nodes, 2 + 1 + 0 + 3);
  EXPECT_EQ(rows.inside, 1 + 1 + 1 + 2);
  EXPECT_EQ(hidden_states_sent(rows, 10, false), 10 * (3 + 3 * 6 + 4 * 5));
  EXPECT_EQ(hidden_states_sent(rows, 10, true), 10 * (2 * 3 + 4 * 6 + 6 * 5));
  const NodeRows one = node_rows(chosen, 3, 8, 4, 4);
  EXPECT_EQ(one.tokens, 0);
  EXPECT_EQ(one.to_nodes, 0);
  EXPECT_EQ(one.inside, remote_assignments(chosen, 3, 8, 4));
}

TEST(ExpertTraffic, RefusesSizesThatDoNotDivide) {
  const std::vector<int64_t> chosen{0, 1, 2, 3};
  EXPECT_THAT(test::thrown_message([&] { remote_assignments(chosen, 1, 6, 4); }),
              HasSubstr("[experts] the experts must be divisible by the ranks: got 6 experts on 4 ranks"));
  EXPECT_THAT(test::thrown_message([&] { remote_assignments(chosen, 2, 8, 4); }),
              HasSubstr("[experts] the tokens must be divisible by the ranks: got 4 assignments of 2 experts per token "
                        "on 4 ranks"));
  EXPECT_THAT(test::thrown_message([&] { node_rows(chosen, 1, 4, 4, 3); }),
              HasSubstr("[experts] the ranks must be divisible by those of a node: got 4 ranks, 3 in a node"));
  EXPECT_THAT(test::thrown_message([&] { remote_assignments(chosen, 1, 2, 2); }),
              HasSubstr("[experts] an expert must be in [0, 2): got 2"));
}

}  // namespace
}  // namespace colossal::parallel::expert_traffic_test
