// Attention of a sequence that is dealt out to ranks, in every mode, against attention of the whole: results and
// gradients of queries, keys and values, for every mask. What each rank sends, and how many pairs of a query and a key
// it has, to the element. With collectives off, or a message lost, it must fail.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "colossal/base/seed.h"
#include "colossal/comm/backends/idle_groups.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/runs.h"
#include "colossal/tensor/flops.h"
#include "support/decorated_world.h"
#include "support/ranks_values.h"
#include "support/tolerance.h"

namespace colossal::test::sequence_exchange_test {
namespace {

using comm::Phase;
using comm::PhaseScope;
using parallel::runs_of;
using parallel::SequenceConfig;
using parallel::size_of;

constexpr int64_t kBatch = 2, kSize = 4;

at::Tensor values(std::vector<int64_t> sizes, const std::string& name) {
  auto generator = at::detail::createCPUGenerator(derive_seed(7, name));
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

struct Case {
  SequenceConfig config;
  int64_t tokens = 24, heads = 12, kv_heads = 12;
  nn::AttentionOptions options{};
  int documents = 0;  ///< 0: one a row; 1: runs, of other borders in each row; 2: every third token is of the same;
                      ///< 3: a short one and a long one, which a zigzag would deal out unevenly
};

std::string name_of(const Case& c) {
  return concat(c.config.mode, " of ", c.config.size, ": ", c.tokens, " tokens, heads ", c.heads, "/", c.kv_heads,
                ", causal ", c.options.causal, ", window ", c.options.window, ", alibi ", c.options.alibi,
                ", documents ", c.documents);
}

at::Tensor documents_of(const Case& c) {
  if (c.documents == 0) return {};
  const at::Tensor at = at::arange(c.tokens, at::kLong) + at::arange(kBatch, at::kLong).unsqueeze(1) * 3;
  if (c.documents == 3) return at.gt(c.tokens / 4).to(at::kLong);
  return c.documents == 1 ? at.div(7, "floor") : at.remainder(3);
}

struct Inputs {
  explicit Inputs(const Case& c)
      : q(values({kBatch, c.tokens, c.heads, kSize}, "q")),
        k(values({kBatch, c.tokens, c.kv_heads, kSize}, "k")),
        v(values({kBatch, c.tokens, c.kv_heads, kSize}, "v")),
        gradient(values({kBatch, c.tokens, c.heads, kSize}, "gradient")) {}
  at::Tensor q, k, v, gradient;
};

/// The result and the gradients of q, k and v.
using Results = std::vector<at::Tensor>;

template <class Attend>
Results run(const Inputs& in, const Attend& attend) {
  const Results leaves{in.q.detach().clone().requires_grad_(), in.k.detach().clone().requires_grad_(),
                       in.v.detach().clone().requires_grad_()};
  const at::Tensor out = attend(leaves);
  out.backward(in.gradient);
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

Results run_whole(const Case& c) {
  const ops::AttentionMask mask{.causal = c.options.causal,
                                .documents = documents_of(c),
                                .scale = c.options.scale,
                                .window = c.options.window,
                                .alibi = c.options.alibi ? ops::alibi_slopes(c.heads) : at::Tensor(),
                                .soft_cap = c.options.soft_cap};
  return run(Inputs(c), [&](const Results& x) {
    return ops::attention(x[0].transpose(1, 2), x[1].transpose(1, 2), x[2].transpose(1, 2), mask).transpose(1, 2);
  });
}

/// What this rank has of it, by its mode.
struct Rank {
  Rank(comm::World& world, const Case& c)
      : world(world),
        mesh(world, parallel::sequence_axes(c.config)),
        exchange(with_sequence_mode(c.config, [&](auto mode) { return mode.exchange(mesh, c.config); })),
        cut(parallel::sequence_cut(c.config, c.tokens, documents_of(c))),
        runs(parallel::runs_of(cut, world.rank(), world.size())) {
    exchange->check(c.heads, c.kv_heads);
  }

  at::Tensor own(const at::Tensor& whole) const { return parallel::tokens_at(whole, 1, runs).contiguous(); }

  Results run_part(const Case& c) {
    Inputs in(c);
    for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.gradient}) *x = own(*x);
    const parallel::SequenceMask mask{c.options, c.options.alibi ? ops::alibi_slopes(c.heads) : at::Tensor(),
                                      documents_of(c)};
    const PhaseScope backward(world.traffic(), Phase::Backward);
    return run(in, [&](const Results& x) {
      const PhaseScope forward(world.traffic(), Phase::Forward);
      return exchange->attend({x[0], x[1], x[2]}, cut, mask);
    });
  }

  comm::World& world;
  comm::Mesh mesh;
  std::shared_ptr<const parallel::SequenceExchange> exchange;
  nn::SequenceCut cut;
  std::vector<ops::PositionRun> runs;
};

/// Throws ParityError on the first difference.
void check(const Case& c, const std::function<DecoratedWorld(comm::World&)>& decorate = {}) {
  SCOPED_TRACE(name_of(c));
  const Results want = run_whole(c);
  comm::run_ranks(static_cast<int>(c.config.size), [&](comm::World& true_world) {
    std::optional<DecoratedWorld> decorated;
    if (decorate) decorated.emplace(decorate(true_world));
    Rank rank(decorated ? *decorated : true_world, c);
    const Results got = rank.run_part(c);
    const char* const names[] = {"result", "gradient of q", "gradient of k", "gradient of v"};
    for (size_t i = 0; i < want.size(); ++i)
      // The size of the whole says what rounding may do: a first token's gradients of scores are zero.
      expect_within(got[i], rank.own(want[i]), tolerance(want[i], c.tokens * c.heads),
                    concat(name_of(c), ": ", names[i]));
  });
}

/// usp: pairs exchange heads, and pairs stand in a ring.
SequenceConfig config_of(const char* mode, int64_t size) {
  return {.size = size, .mode = mode, .ulysses = mode == std::string("usp") && size % 2 == 0 ? 2 : 1};
}

class SequenceExchange : public testing::TestWithParam<const char*> {
 protected:
  SequenceConfig of(int64_t size) const { return config_of(GetParam(), size); }
};

TEST_P(SequenceExchange, IsAttentionUnderEveryMask) {
  for (const bool causal : {true, false})
    for (const int documents : {0, 1, 2})
      for (const int64_t window : {0, 5}) {
        EXPECT_NO_THROW(
            check({.config = of(3), .options = {.causal = causal, .window = window}, .documents = documents}));
        EXPECT_NO_THROW(
            check({.config = of(2),
                   .tokens = 21,
                   .options = {.causal = causal, .window = window, .alibi = true, .soft_cap = 2, .scale = 0.7},
                   .documents = documents}));
      }
}

TEST_P(SequenceExchange, OfAnyNumberOfRanksAndTokensIsAttention) {
  for (const int64_t ranks : {1, 2, 3, 4, 6})
    for (const int64_t tokens : {6, 13, 24}) EXPECT_NO_THROW(check({.config = of(ranks), .tokens = tokens}));
}

// Key-value heads that divide by the ranks, that are fewer, and that share them out unevenly.
TEST_P(SequenceExchange, OfGroupedQueriesIsAttention) {
  for (const int64_t kv_heads : {1, 2, 3, 4, 6})
    for (const int64_t ranks : {2, 4}) EXPECT_NO_THROW(check({.config = of(ranks), .kv_heads = kv_heads}));
}

// 150 tokens, dealt out by pieces.
TEST_P(SequenceExchange, OfTokensDealtOutByDocumentsIsAttention) {
  for (const int64_t ranks : {2, 4}) EXPECT_NO_THROW(check({.config = of(ranks), .tokens = 150, .documents = 3}));
}

TEST_P(SequenceExchange, NeedsItsCollectives) {
  EXPECT_THROW(check({.config = of(2)},
                     [](comm::World& world) {
                       return DecoratedWorld(world, [](const std::shared_ptr<comm::Group>& group) {
                         return std::make_shared<comm::IdleGroup>(group->name(), group->rank(), group->size());
                       });
                     }),
               ParityError);
}

INSTANTIATE_TEST_SUITE_P(Modes, SequenceExchange,
                         testing::Values("gather", "ulysses", "ring", "usp", "ring-self-attention"));

struct Sent {
  double forward, backward;
  int64_t forward_calls, backward_calls;
  bool operator==(const Sent&) const = default;
};

void PrintTo(const Sent& s, std::ostream* out) {
  *out << s.forward << " in " << s.forward_calls << " forward, " << s.backward << " in " << s.backward_calls;
}

/// Of each rank.
std::vector<Sent> sent_by(const Case& c) {
  std::vector<Sent> sent(c.config.size);
  comm::run_ranks(static_cast<int>(c.config.size), [&](comm::World& world) {
    Rank rank(world, c);
    world.traffic().reset();
    rank.run_part(c);
    const auto f = world.traffic().total("", "", Phase::Forward), b = world.traffic().total("", "", Phase::Backward);
    sent[world.rank()] = {f.elements, b.elements, f.calls, b.calls};
  });
  return sent;
}

constexpr double kTokens = 24;

// Forward one all_gather of keys and values, backward one reduce_scatter of their gradients.
TEST(SequenceTraffic, OfGatherIsKeysAndValuesOnceEachWay) {
  for (const int64_t kv_heads : {12, 3})
    for (const int64_t ranks : {2, 3, 4}) {
      const double n = static_cast<double>(ranks),
                   both = 2 * (n - 1) / n * kBatch * kTokens * static_cast<double>(kv_heads * kSize);
      EXPECT_THAT(sent_by({.config = {ranks, "gather"}, .kv_heads = kv_heads}), testing::Each(Sent{both, both, 1, 1}));
    }
}

// One all_to_all of q, k and v and one of the result, and as much in backward. Fewer kv heads than ranks: as if each
// rank's query heads had one of their own.
TEST(SequenceTraffic, OfUlyssesIsAnExchangeEachWay) {
  for (const int64_t kv_heads : {12, 3, 1})
    for (const int64_t ranks : {2, 3, 4}) {
      if (kv_heads % ranks != 0 && ranks % kv_heads != 0) continue;  // some ranks read more kv heads than others
      const double n = static_cast<double>(ranks), kv = static_cast<double>(std::max(kv_heads, ranks)),
                   sent = (n - 1) / (n * n) * kBatch * kTokens * kSize * (2 * 12 + 2 * kv);
      EXPECT_THAT(sent_by({.config = {ranks, "ulysses"}, .kv_heads = kv_heads}), testing::Each(Sent{sent, sent, 2, 2}));
    }
}

// Keys and values go to all other ranks; in backward again, and their gradients all the way round. Sends and receives
// are two calls.
TEST(SequenceTraffic, OfTheRingIsTwoRoundsAndOneOfGradients) {
  for (const int64_t kv_heads : {12, 3})
    for (const int64_t ranks : {2, 3, 4}) {
      const double n = static_cast<double>(ranks),
                   both = 2 / n * kBatch * kTokens * static_cast<double>(kv_heads * kSize);
      EXPECT_THAT(sent_by({.config = {ranks, "ring"}, .kv_heads = kv_heads}),
                  testing::Each(Sent{(n - 1) * both, (2 * n - 1) * both, 2 * (ranks - 1), 2 * (2 * ranks - 1)}));
    }
}

// Keys and values go round in forward and again in backward; their gradients are reduced and scattered.
TEST(SequenceTraffic, OfRingSelfAttentionIsThatOfThePaperWithScatteredGradients) {
  for (const int64_t ranks : {2, 3, 4}) {
    const double n = static_cast<double>(ranks), round = 2 * (n - 1) / n * kBatch * kTokens * 12 * kSize;
    EXPECT_THAT(sent_by({.config = {ranks, "ring-self-attention"}}),
                testing::Each(Sent{round, 2 * round, 4 * (ranks - 1), 4 * (ranks - 1) + 1}));
  }
}

// Ulysses' terms among U neighbours, of the tokens of all of them, and the ring's among N / U groups with their heads.
TEST(SequenceTraffic, OfUspIsThatOfBothInside) {
  const double ulysses = 1.0 / 4 * kBatch * kTokens / 3 * kSize * (2 * 12 + 2 * 12),
               ring = 2.0 / 3 * kBatch * kTokens * kSize * 12 / 2;
  EXPECT_THAT(sent_by({.config = {6, "usp", 2}}),
              testing::Each(Sent{ulysses + 2 * ring, ulysses + 5 * ring, 2 + 2 * 2, 2 + 2 * 5}));
}

// Whatever message is lost, of the keys, of the keys in backward, or of their gradients: somebody's numbers are wrong.
TEST(SequenceRing, NeedsEveryMessage) {
  for (const char* axis : {"sequence", "ring"}) {
    const Case c{.config = axis == std::string("ring") ? config_of("usp", 6) : config_of("ring", 3)};
    const auto losing = [&](int lost) {
      return [=](comm::World& world) { return losing_a_transfer(world, lost, axis); };
    };
    for (int lost = 0; lost < 2 + 2 + 3; ++lost)
      EXPECT_THROW(check(c, losing(lost)), ParityError) << "message " << lost;
    EXPECT_NO_THROW(check(c, losing(2 + 2 + 3))) << "there are no more";
  }
}

// What is moved is moved bit for bit, and each head is computed as one process computes it.
TEST(SequenceUlysses, IsAttentionToTheLastBit) {
  for (const int64_t kv_heads : {12, 6})
    for (const int64_t ranks : {2, 3}) {
      const Case c{.config = {ranks, "ulysses"}, .tokens = 25, .kv_heads = kv_heads, .options = {.alibi = true}};
      const Results want = run_whole(c);
      comm::run_ranks(static_cast<int>(ranks), [&](comm::World& world) {
        Rank rank(world, c);
        const Results got = rank.run_part(c);
        for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(same_bits(got[i], rank.own(want[i]))) << i;
      });
    }
}

TEST(SequenceUlysses, OfHeadsThatDoNotDivideIsRefused) {
  for (const char* mode : {"ulysses", "usp"})
    EXPECT_THAT(
        thrown_message([&] { check({.config = config_of(mode, 2), .heads = 9, .kv_heads = 3}); }),
        testing::HasSubstr("[parallel] the 9 attention heads of a rank must divide by the 2 ranks that exchange "
                           "tokens for heads (sequence.mode ulysses, usp): take another number of ranks, or "
                           "mode ring or gather"));
  EXPECT_THAT(thrown_message([] { parallel::sequence_axes({.size = 4, .mode = "usp", .ulysses = 3}); }),
              testing::HasSubstr("sequence.ulysses must divide sequence.size: got 3 of 4"));
  EXPECT_THAT(thrown_message([] { parallel::check_sequence({.size = 4, .mode = "ring", .ulysses = 2}, 24); }),
              testing::HasSubstr("sequence.ulysses belongs to mode usp: got 2 with mode ring"));
}

// Zigzag: all ranks have the same number of pairs of a query and a key that it sees.
TEST(SequenceTraffic, OperationsAreTheSameOnAllRanks) {
  for (const char* mode : {"gather", "ulysses", "ring", "usp", "ring-self-attention"})
    for (const int64_t ranks : {2, 3, 4}) {
      const Case c{.config = config_of(mode, ranks)};
      std::vector<double> operations(ranks);
      comm::run_ranks(static_cast<int>(ranks), [&](comm::World& world) {
        Rank rank(world, c);
        const tensor::FlopCount count;
        rank.run_part(c);
        operations[world.rank()] = count.total();
      });
      const double pairs = kTokens * (kTokens + 1) / 2 * kBatch * static_cast<double>(c.heads);
      EXPECT_THAT(operations, testing::Each(12 * kSize * pairs / static_cast<double>(ranks))) << mode;
    }
}

// Of packed documents what queries have inside them: what lies between is neither computed nor counted, however a row
// is dealt out.
TEST(SequenceTraffic, OperationsOfPackedDocumentsAreThePairsInside) {
  for (const char* mode : {"gather", "ring", "ring-self-attention"})
    for (const int64_t ranks : {2, 4}) {
      const Case c{.config = config_of(mode, ranks), .tokens = 150, .documents = 3};
      const nn::SequenceCut cut = parallel::sequence_cut(c.config, c.tokens, documents_of(c));
      EXPECT_NE(cut.held, parallel::zigzag(c.tokens, ranks).held) << "a dealt cut";
      const std::vector<double> pairs = parallel::pairs_of(cut, documents_of(c));
      comm::run_ranks(static_cast<int>(ranks), [&](comm::World& world) {
        Rank rank(world, c);
        const tensor::FlopCount count;
        rank.run_part(c);
        EXPECT_EQ(count.total(), 12 * kSize * static_cast<double>(c.heads) * pairs[world.rank()]) << mode;
      });
    }
}

/// The gradient of the values of this rank's tokens where every query looks at all keys alike: the mean of `dout`
/// [B, S, N, D] over the queries, summed over the heads that read a value.
at::Tensor gradient_of_means(comm::World& world, const Case& c, const at::Tensor& dout) {
  Rank rank(world, c);
  const auto tokens = size_of(rank.runs);
  const auto leaf = [&](int64_t heads) {
    return at::zeros({dout.size(0), tokens, heads, kSize}, dout.options()).requires_grad_();
  };
  const Results x{leaf(c.heads), leaf(c.kv_heads), leaf(c.kv_heads)};
  rank.exchange->attend({x[0], x[1], x[2]}, rank.cut, {c.options, {}, {}}).backward(rank.own(dout));
  return x[2].grad();
}

/// Half the distance from 1 to the next number of the type.
double roundoff(at::ScalarType type) { return type == at::kHalf ? 0x1p-11 : type == at::kBFloat16 ? 0x1p-8 : 0x1p-24; }

/// A sum of `terms` products in fp32, whose sizes add up to `size`, rounded to `type` once.
void expect_rounded_once(const at::Tensor& got, const at::Tensor& want, int64_t terms, double size, at::ScalarType type,
                         const std::string& what) {
  const at::Tensor limit = want.abs() * roundoff(type) + 2 * static_cast<double>(terms) * size * roundoff(at::kFloat);
  EXPECT_TRUE((got.to(at::kDouble) - want).abs().le(limit).all().item<bool>())
      << what << ": off by " << (got.to(at::kDouble) - want).abs().max().item<double>() << ", values up to "
      << want.abs().max().item<double>();
}

constexpr at::ScalarType kNarrow[] = {at::kBFloat16, at::kHalf};

// What ranks find out cancels, but for some digits that are lost where a rank rounds its own part first.
TEST(SequencePrecision, GradientsOfAllRanksAreAddedUpBeforeTheyAreRounded) {
  constexpr int64_t kRanks = 3;
  for (const char* mode : {"gather", "ring", "ring-self-attention"})
    for (const auto type : kNarrow) {
      const Case c{.config = config_of(mode, kRanks), .heads = 2, .kv_heads = 2, .options = {.causal = false}};
      const nn::SequenceCut cut = parallel::zigzag(c.tokens, kRanks);
      const at::Tensor dout = values({kBatch, c.tokens, c.heads, kSize}, "dout").to(type).to(at::kDouble);
      const auto of = [&](int64_t rank) { return parallel::tokens_at(dout, 1, runs_of(cut, rank, kRanks)); };
      const ops::PositionRun last = runs_of(cut, 2, kRanks).front();  // its runs touch
      dout.narrow(1, last.first, last.size).copy_((of(0) + of(1)).neg().to(type));
      const at::Tensor want = dout.mean(1, /*keepdim=*/true);
      const double size = dout.abs().mean(1).max().item<double>();
      comm::run_ranks(kRanks, [&](comm::World& world) {
        expect_rounded_once(gradient_of_means(world, c, dout.to(type)), want, c.tokens + 4, size, type,
                            concat(mode, ", ", type));
      });
    }
}

// A key-value head that all ranks read: one has a part of 1, the others parts of less than 1's roundoff each, numbers
// of the type all of them, and together more than it.
TEST(SequencePrecision, GradientsOfASharedHeadAreAddedUpBeforeTheyAreRounded) {
  constexpr int64_t kRanks = 8;
  for (const auto type : kNarrow) {
    const Case c{
        .config = {kRanks, "ulysses"}, .tokens = 16, .heads = kRanks, .kv_heads = 1, .options = {.causal = false}};
    const at::Tensor dout = at::full({kBatch, c.tokens, c.heads, kSize}, roundoff(type) * (1 - roundoff(type)),
                                     at::TensorOptions().dtype(at::kDouble));
    dout.select(2, kRanks / 2).fill_(1);
    const at::Tensor want = dout.mean(1, /*keepdim=*/true).sum(2, /*keepdim=*/true);
    comm::run_ranks(kRanks, [&](comm::World& world) {
      expect_rounded_once(gradient_of_means(world, c, dout.to(type)), want, c.tokens + kRanks,
                          want.max().item<double>(), type, concat("ulysses, ", type));
    });
  }
}

TEST(SequenceRuns, OfZigzagDifferByATokenAtMost) {
  for (const int64_t ranks : {1, 2, 3, 5})
    for (const int64_t shares : {1, 2, 3})
      for (int64_t tokens = ranks * shares; tokens < 40; ++tokens) {
        const nn::SequenceCut cut = parallel::zigzag(tokens, ranks, shares);
        std::vector<int64_t> together, apart;
        for (int64_t rank = 0; rank < ranks; ++rank) together.push_back(size_of(runs_of(cut, rank, ranks)));
        for (int64_t rank = 0; rank < ranks * shares; ++rank)
          apart.push_back(size_of(runs_of(cut, rank, ranks * shares)));
        const auto [least, most] = std::minmax_element(together.begin(), together.end());
        EXPECT_LE(*most - *least, 1) << tokens << " tokens, " << ranks << " ranks of " << shares;
        EXPECT_GE(*std::min_element(apart.begin(), apart.end()), 1)
            << tokens << " tokens, " << ranks << " of " << shares;
        if (tokens % (2 * ranks * shares) == 0) EXPECT_THAT(apart, testing::Each(tokens / (ranks * shares)));
      }
}

/// Rows of documents, many short ones and few long ones as those of a corpus: logarithms of lengths are normal.
at::Tensor packed(int64_t rows, int64_t tokens, double median, double deviation) {
  auto generator = at::detail::createCPUGenerator(11);
  const at::Tensor ids = at::zeros({rows, tokens}, at::kLong);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t first = 0, id = 0; first < tokens; ++id) {
      const double draw = at::randn({}, generator, at::TensorOptions().dtype(at::kDouble)).item<double>();
      const auto length = std::max<int64_t>(1, std::llround(median * std::exp(deviation * draw)));
      ids[row].slice(0, first, std::min(tokens, first + length)).fill_(id);
      first += length;
    }
  return ids;
}

// Within 2 % of the mean, on every number of ranks, where a zigzag is off. Each has as many tokens as under a zigzag,
// whatever the documents are.
TEST(SequenceRuns, OfDocumentsAreBalancedByTheirPairs) {
  const auto uneven = [](const std::vector<double>& pairs) {
    return *std::max_element(pairs.begin(), pairs.end()) * static_cast<double>(pairs.size()) /
           std::accumulate(pairs.begin(), pairs.end(), 0.0);
  };
  for (const int64_t rows : {1, 3})
    for (const int64_t ranks : {2, 3, 4, 8}) {
      const at::Tensor documents = packed(rows, 16384 + 5, 600, 1.2);
      const nn::SequenceCut cut = parallel::balanced(documents, ranks), plain = parallel::zigzag(16384 + 5, ranks);
      EXPECT_LE(uneven(parallel::pairs_of(cut, documents)), 1.02) << rows << " rows, " << ranks << " ranks";
      EXPECT_GT(uneven(parallel::pairs_of(plain, documents)), 1.02) << rows << " rows, " << ranks << " ranks";
      for (int64_t rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(size_of(runs_of(cut, rank, ranks)), size_of(runs_of(plain, rank, ranks)));
    }
}

TEST(SequenceRuns, OfNeighboursThatShareAreBalancedTogether) {
  const at::Tensor documents = packed(1, 6007, 300, 1);
  for (const int64_t shares : {2, 3}) {
    const nn::SequenceCut cut = parallel::balanced(documents, 2, shares), plain = parallel::zigzag(6007, 2, shares);
    std::vector<double> pairs = parallel::pairs_of(cut, documents), together(2);
    for (size_t i = 0; i < pairs.size(); ++i) together[i / shares] += pairs[i];
    EXPECT_LE(std::max(together[0], together[1]) * 2 / (together[0] + together[1]), parallel::kUneven);
    for (int64_t rank = 0; rank < 2 * shares; ++rank)
      EXPECT_EQ(size_of(runs_of(cut, rank, 2 * shares)), size_of(runs_of(plain, rank, 2 * shares)));
  }
}

TEST(SequenceRuns, OfZigzagAreThoseOfBothEnds) {
  const nn::SequenceCut cut = parallel::zigzag(12, 3);
  EXPECT_THAT(cut.lengths, testing::Each(2));
  EXPECT_THAT(cut.held,
              testing::ElementsAre(testing::ElementsAre(0, 5), testing::ElementsAre(1, 4), testing::ElementsAre(2, 3)));
  EXPECT_EQ(runs_of(cut, 2, 3).size(), 1u) << "runs that touch are one";
  EXPECT_EQ(parallel::balanced(at::zeros({2, 12}, at::kLong), 3).held, cut.held) << "one document a row";
  EXPECT_THAT(thrown_message([] { parallel::zigzag(3, 4); }),
              testing::HasSubstr("each of the 4 ranks that split a row must have a token of it: got 3"));
}

}  // namespace
}  // namespace colossal::test::sequence_exchange_test
