// Attention of a sequence that is split over ranks, in every mode, against attention to the whole: results and
// gradients of queries, keys and values, for every mask. The traffic of each rank, and its number of pairs of a query
// and a key, exactly. sequence_faults_test.cpp shows that faults in all of this are noticed.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "colossal/nn/attention.h"
#include "colossal/nn/tokens.h"
#include "colossal/tensor/flops.h"
#include "parallel/sequence_ranks.h"
#include "support/ranks_values.h"
#include "support/thrown_message.h"

namespace colossal::test::sequence_exchange_test {
namespace {

using comm::Phase;
using parallel::runs_of;
using parallel::size_of;

constexpr int64_t kBatch = kSequenceRows, kSize = kSequenceHeadSize;

class SequenceExchange : public testing::TestWithParam<std::string> {
 protected:
  parallel::SequenceConfig of(int64_t size) const { return config_of(GetParam(), size); }
  int64_t few() const { return few_ranks(GetParam()); }
  int64_t odd() const { return odd_ranks(GetParam()); }
};

TEST_P(SequenceExchange, ComputesAttentionUnderEveryMask) {
  for (const bool causal : {true, false})
    for (const int documents : {0, 1, 2})
      for (const int64_t window : {0, 5}) {
        EXPECT_NO_THROW(check_attention(
            {.config = of(odd()), .options = {.causal = causal, .window = window}, .documents = documents}));
        EXPECT_NO_THROW(check_attention(
            {.config = of(few()),
             .tokens = 21,
             .options = {.causal = causal, .window = window, .alibi = true, .soft_cap = 2, .scale = 0.7},
             .documents = documents}));
      }
}

TEST_P(SequenceExchange, ComputesAttentionForAnyNumberOfRanksAndTokens) {
  for (const int64_t ranks : {1, 2, 3, 4, 6})
    for (const int64_t tokens : {6, 13, 24}) EXPECT_NO_THROW(check_attention({.config = of(ranks), .tokens = tokens}));
}

// One key-value head for each rank, and one for four of them; usp in four pairs, and in two groups of four.
TEST_P(SequenceExchange, ComputesAttentionOnEightRanks) {
  std::vector<parallel::SequenceConfig> configs{of(8)};
  if (GetParam() == "usp") configs.push_back({8, "usp", 4});
  for (const parallel::SequenceConfig& config : configs)
    for (const int64_t kv_heads : {8, 2}) {
      SequenceCase c{.config = config, .tokens = 29, .heads = 8, .kv_heads = kv_heads};
      EXPECT_NO_THROW(check_attention(c));
      c.options = {.causal = false, .window = 9, .alibi = true};
      c.documents = 1;
      EXPECT_NO_THROW(check_attention(c));
    }
}

// Numbers of key-value heads that divide by the ranks, that are smaller, and that split unevenly.
TEST_P(SequenceExchange, ComputesAttentionWithGroupedQueries) {
  for (const int64_t kv_heads : {1, 2, 3, 4, 6})
    for (const int64_t ranks : {2, 4}) EXPECT_NO_THROW(check_attention({.config = of(ranks), .kv_heads = kv_heads}));
}

// 150 tokens, split by pieces.
TEST_P(SequenceExchange, ComputesAttentionForTokensSplitByDocuments) {
  for (const int64_t ranks : {few(), 2 * few()}) {
    SequenceCase c{.config = of(ranks), .tokens = 150, .heads = 8, .kv_heads = 4, .documents = 3};
    for (const nn::AttentionOptions& options :
         {nn::AttentionOptions{}, nn::AttentionOptions{.window = 40, .alibi = true},
          nn::AttentionOptions{.causal = false}}) {
      c.options = options;
      EXPECT_NE(parallel::sequence_cut(c.config, c.tokens, documents_of(c), {options}).lengths,
                parallel::sequence_cut(c.config, c.tokens, {}).lengths)
          << "a zigzag";
      EXPECT_NO_THROW(check_attention(c));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SequenceExchange, testing::ValuesIn(parallel::sequence_mode_names()));

struct Sent {
  double forward, backward;
  int64_t forward_calls, backward_calls;
  bool operator==(const Sent&) const = default;
};

void PrintTo(const Sent& s, std::ostream* out) {
  *out << s.forward << " in " << s.forward_calls << " forward, " << s.backward << " in " << s.backward_calls;
}

/// Returns the traffic of each rank.
std::vector<Sent> sent_by(const SequenceCase& c) {
  std::vector<Sent> sent(c.config.size);
  comm::run_ranks(static_cast<int>(c.config.size), [&](comm::World& world) {
    RankOfSequence rank(world, c);
    world.traffic().reset();
    rank.run(c);
    const auto f = world.traffic().total("", "", Phase::Forward), b = world.traffic().total("", "", Phase::Backward);
    sent[world.rank()] = {f.elements, b.elements, f.calls, b.calls};
  });
  return sent;
}

constexpr double kTokens = 24;

// Forward makes one all_gather of keys and values, backward one reduce_scatter of their gradients.
TEST(SequenceTraffic, GatherSendsKeysAndValuesOnceEachWay) {
  for (const int64_t kv_heads : {12, 3})
    for (const int64_t ranks : {2, 3, 4}) {
      const double n = static_cast<double>(ranks),
                   both = 2 * (n - 1) / n * kBatch * kTokens * static_cast<double>(kv_heads * kSize);
      EXPECT_THAT(sent_by({.config = {ranks, "gather"}, .kv_heads = kv_heads}), testing::Each(Sent{both, both, 1, 1}));
    }
}

// Forward makes one all_to_all of q, k and v and one of the result; backward makes as many. The traffic with fewer kv
// heads than ranks equals the traffic of one kv head per rank.
TEST(SequenceTraffic, UlyssesExchangesOnceEachWay) {
  for (const int64_t kv_heads : {12, 3, 1})
    for (const int64_t ranks : {2, 3, 4}) {
      if (kv_heads % ranks != 0 && ranks % kv_heads != 0) continue;  // some ranks read more kv heads than others
      const double n = static_cast<double>(ranks), kv = static_cast<double>(std::max(kv_heads, ranks)),
                   sent = (n - 1) / (n * n) * kBatch * kTokens * kSize * (2 * 12 + 2 * kv);
      EXPECT_THAT(sent_by({.config = {ranks, "ulysses"}, .kv_heads = kv_heads}), testing::Each(Sent{sent, sent, 2, 2}));
    }
}

// Keys and values go to all other ranks, in backward again, and their gradients travel once around the ring. A send
// and its receive are two calls.
TEST(SequenceTraffic, RingMakesTwoRoundsAndOneOfGradients) {
  for (const int64_t kv_heads : {12, 3})
    for (const int64_t ranks : {2, 3, 4}) {
      const double n = static_cast<double>(ranks),
                   both = 2 / n * kBatch * kTokens * static_cast<double>(kv_heads * kSize);
      EXPECT_THAT(sent_by({.config = {ranks, "ring"}, .kv_heads = kv_heads}),
                  testing::Each(Sent{(n - 1) * both, (2 * n - 1) * both, 2 * (ranks - 1), 2 * (2 * ranks - 1)}));
    }
}

// Keys and values circulate in forward and again in backward; a reduce_scatter sums their gradients.
TEST(SequenceTraffic, RingSelfAttentionMatchesThePaperWithScatteredGradients) {
  for (const int64_t ranks : {2, 3, 4}) {
    const double n = static_cast<double>(ranks), round = 2 * (n - 1) / n * kBatch * kTokens * 12 * kSize;
    EXPECT_THAT(sent_by({.config = {ranks, "ring-self-attention"}}),
                testing::Each(Sent{round, 2 * round, 4 * (ranks - 1), 4 * (ranks - 1) + 1}));
  }
}

// Ulysses' terms apply among U neighbours, to the tokens of all of them; the ring's terms apply among N / U groups, to
// their heads.
TEST(SequenceTraffic, UspCombinesUlyssesAndRing) {
  const double ulysses = 1.0 / 4 * kBatch * kTokens / 3 * kSize * (2 * 12 + 2 * 12),
               ring = 2.0 / 3 * kBatch * kTokens * kSize * 12 / 2;
  EXPECT_THAT(sent_by({.config = {6, "usp", 2}}),
              testing::Each(Sent{ulysses + 2 * ring, ulysses + 5 * ring, 2 + 2 * 2, 2 + 2 * 5}));
}

// Elements are moved bit for bit, and each head is computed as on one process.
TEST(SequenceUlysses, EqualsOneProcessBitwise) {
  for (const int64_t kv_heads : {12, 6})
    for (const int64_t ranks : {2, 3}) {
      const SequenceCase c{
          .config = {ranks, "ulysses"}, .tokens = 25, .kv_heads = kv_heads, .options = {.alibi = true}};
      const AttentionResults want = run_whole(c);
      comm::run_ranks(static_cast<int>(ranks), [&](comm::World& world) {
        RankOfSequence rank(world, c);
        const AttentionResults got = rank.run(c);
        for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(same_bits(got[i], rank.own(want[i]))) << i;
      });
    }
}

TEST(SequenceUlysses, RefusesHeadsThatDoNotDivide) {
  for (const char* mode : {"ulysses", "usp"})
    EXPECT_THAT(thrown_message([&] { check_attention({.config = config_of(mode, 2), .heads = 9, .kv_heads = 3}); }),
                testing::HasSubstr(
                    "[parallel] the 9 attention heads of a rank must be divisible by the 2 ranks that exchange tokens "
                    "for heads (sequence.mode ulysses, usp); use another number of ranks, or mode ring or gather"));
  EXPECT_THAT(thrown_message([] { parallel::sequence_axes({.size = 4, .mode = "usp", .ulysses = 3}); }),
              testing::HasSubstr("sequence.ulysses must divide sequence.size: got 3 of 4"));
  EXPECT_THAT(thrown_message([] { parallel::check_sequence({.size = 4, .mode = "ring", .ulysses = 2}, 24); }),
              testing::HasSubstr("sequence.ulysses needs mode usp: got 2 with mode ring"));
}

// Under a zigzag all ranks have the same number of pairs of a query and a visible key.
TEST(SequenceTraffic, BalancesOperationsOverRanks) {
  for (const std::string& mode : parallel::sequence_mode_names())
    for (const int64_t ranks : {2, 3, 4}) {
      const SequenceCase c{.config = config_of(mode, ranks)};
      std::vector<double> operations(ranks);
      comm::run_ranks(static_cast<int>(ranks), [&](comm::World& world) {
        RankOfSequence rank(world, c);
        const tensor::FlopCount count;
        rank.run(c);
        operations[world.rank()] = count.total();
      });
      const double pairs = kTokens * (kTokens + 1) / 2 * kBatch * static_cast<double>(c.heads);
      EXPECT_THAT(operations, testing::Each(12 * kSize * pairs / static_cast<double>(ranks))) << mode;
    }
}

// In packed documents only pairs inside a document count: other pairs are neither computed nor counted, however a row
// is split.
TEST(SequenceTraffic, CountsOnlyPairsInsidePackedDocuments) {
  for (const char* mode : {"gather", "ring", "ring-self-attention"})
    for (const int64_t ranks : {2, 4}) {
      const SequenceCase c{.config = config_of(mode, ranks), .tokens = 150, .documents = 3};
      const nn::SequenceCut cut = parallel::sequence_cut(c.config, c.tokens, documents_of(c));
      EXPECT_NE(cut.held, parallel::zigzag(c.tokens, ranks).held) << "a dealt cut";
      const std::vector<double> pairs = parallel::pairs_of(cut, documents_of(c), {{}});
      comm::run_ranks(static_cast<int>(ranks), [&](comm::World& world) {
        RankOfSequence rank(world, c);
        const tensor::FlopCount count;
        rank.run(c);
        EXPECT_EQ(count.total(), 12 * kSize * static_cast<double>(c.heads) * pairs[world.rank()]) << mode;
      });
    }
}

}  // namespace
}  // namespace colossal::test::sequence_exchange_test
