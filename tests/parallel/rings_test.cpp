// Rings of rings: attention equals one process's, every message is needed, and traffic between nodes follows the
// formulas.
#include "colossal/parallel/sequence/rings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/comm/simulated_world.h"
#include "colossal/nn/attention.h"
#include "colossal/parallel/sequence/attention_cost.h"
#include "parallel/sequence_ranks.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::test::rings_test {
namespace {

using parallel::SequenceConfig;
using testing::HasSubstr;

const std::vector<SequenceConfig> kRings{{.size = 4, .mode = "ring", .node = 2},
                                         {.size = 6, .mode = "ring", .node = 2},
                                         {.size = 6, .mode = "ring", .node = 3},
                                         {.size = 3, .mode = "ring", .node = 3},
                                         {.size = 3, .mode = "ring", .node = 1},
                                         {.size = 8, .mode = "usp", .ulysses = 2, .node = 4},
                                         {.size = 4, .mode = "usp", .ulysses = 2, .node = 2}};

TEST(DoubleRing, ComputesAttentionUnderEveryMask) {
  for (const SequenceConfig& config : kRings)
    for (const int documents : {0, 1, 3})
      for (const nn::AttentionOptions& options :
           {nn::AttentionOptions{}, {.causal = false}, {.window = 5}, {.alibi = true}}) {
        const SequenceCase c{.config = config, .tokens = 25, .kv_heads = 6, .options = options, .documents = documents};
        EXPECT_NO_THROW(check_attention(c)) << name_of(c) << ", node " << config.node;
      }
}

// Two nodes of two, two of three, in which a turn sums in transit, and three of two. In each step of a turn a part
// goes to the neighbour, and in each turn one to the next node; backward repeats this. The sums of gradients follow
// them: one per turn to the next node, and as many to the neighbour as parts.
class DoubleRingMessages : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(DoubleRingMessages, NeedsEveryMessage) {
  const auto [nodes, members] = GetParam();
  const SequenceCase c{.config = {.size = nodes * members, .mode = "ring", .node = members}, .tokens = 13};
  const int parts = nodes * (members - 1) + (nodes - 1), messages = parts + parts + nodes * (members - 1) + nodes;
  for (int i = 0; i < messages; ++i) {
    EXPECT_THROW(check_attention(c, [&](comm::World& world) { return losing_a_message(world, i); }), ParityError) << i;
    EXPECT_THROW(check_attention(c, [&](comm::World& world) { return short_of_a_rotation(world, i); }), ParityError)
        << i;
  }
  EXPECT_NO_THROW(check_attention(c, [&](comm::World& world) { return losing_a_message(world, messages); }));
}

INSTANTIATE_TEST_SUITE_P(NodesAndMembers, DoubleRingMessages,
                         testing::Values(std::pair{2, 2}, std::pair{2, 3}, std::pair{3, 2}));

// Each rank receives every part once, its own first. Between nodes it receives the part of the same position in the
// previous node.
TEST(DoubleRing, ReceivesAllPartsNodeByNode) {
  const auto world = comm::make_simulated_world(4, 6);
  const SequenceConfig config{.size = 6, .mode = "ring", .node = 3};
  comm::Mesh mesh(*world, parallel::sequence_axes(config));
  const parallel::DoubleRing ring = double_ring(mesh, config);
  std::vector<int> sources;
  for (int i = 0; i < ring.size(); ++i) sources.push_back(ring.source(i));
  EXPECT_THAT(sources, testing::ElementsAre(4, 3, 5, 1, 0, 2));
  EXPECT_EQ(ring.rank(), 4);
}

// In units of parts of keys and values; gradients have as many bytes. A ring over all sends 2 (N-1) + N, the same with
// nodes, of which 2 (O-1) + O are sent between them.
TEST(DoubleRing, SendsLessBetweenNodes) {
  const parallel::AttentionSizes sizes{.batch = 2, .tokens = 64, .heads = 4, .kv_heads = 4, .head_dim = 2};
  const double part = 2 * 4.0 * 2 * 8 * 4 * 2;  // k and v, fp32, of 8 tokens of 2 rows
  const auto of = [&](int64_t node) {
    const auto cost = parallel::published_cost({.size = 8, .mode = "ring", .node = node}, sizes)[3];
    return std::vector<double>{cost.forward / part, cost.backward / part, cost.between_nodes / part};
  };
  EXPECT_THAT(of(0), testing::ElementsAre(7, 15, 0));
  EXPECT_THAT(of(4), testing::ElementsAre(7, 15, 1 + 1 + 2));
  EXPECT_THAT(of(2), testing::ElementsAre(7, 15, 3 + 3 + 4));
  EXPECT_THAT(of(8), testing::ElementsAre(7, 14, 0)) << "one node: its own share of a sum need not go round";
}

TEST(DoubleRing, TrainsLikeOneProcess) {
  EXPECT_NO_THROW(check_parity({.shape = tiny_llama(),
                                .data = 2,
                                .sequences = {.size = 4, .mode = "ring", .node = 2},
                                .sequence = 13,
                                .steps = 3,
                                .zero = 3}));
}

TEST(DoubleRing, RefusesNodesThatDoNotFit) {
  const auto refused = [](const SequenceConfig& config) {
    return thrown_message([&] { parallel::sequence_axes(config); });
  };
  EXPECT_THAT(
      refused({.size = 8, .mode = "ring", .node = 3}),
      HasSubstr("[parallel] sequence.node, the ranks of a node, must divide sequence.size and hold whole groups "
                "of sequence.ulysses: got 3 of 8, ulysses 1"));
  EXPECT_THAT(refused({.size = 12, .mode = "usp", .ulysses = 4, .node = 6}), HasSubstr("got 6 of 12, ulysses 4"));
  EXPECT_THAT(refused({.size = 8, .mode = "gather", .node = 4}),
              HasSubstr("[parallel] sequence.node needs mode ring or usp: got 4 with mode gather"));
}

}  // namespace
}  // namespace colossal::test::rings_test
