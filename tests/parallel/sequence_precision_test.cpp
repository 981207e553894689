// Contributions of ranks to the gradients of keys and values are summed in fp32 and rounded once, in every mode.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/nn/tokens.h"
#include "parallel/sequence_ranks.h"

namespace colossal::test::sequence_precision_test {
namespace {

using parallel::runs_of;
using parallel::size_of;

/// Returns the gradient of the values of this rank's tokens if every query weights all keys equally. It is the mean of
/// `dout` [B, S, N, D] over the queries, summed over the heads that read a value.
at::Tensor gradient_of_means(comm::World& world, const SequenceCase& c, const at::Tensor& dout) {
  RankOfSequence rank(world, c);
  const auto tokens = size_of(rank.runs);
  const auto leaf = [&](int64_t heads) {
    return at::zeros({dout.size(0), tokens, heads, kSequenceHeadSize}, dout.options()).requires_grad_();
  };
  const AttentionResults x{leaf(c.heads), leaf(c.kv_heads), leaf(c.kv_heads)};
  rank.exchange->attend({x[0], x[1], x[2]}, rank.cut, {c.options, {}, {}}).backward(rank.own(dout));
  return x[2].grad();
}

/// Returns half the distance from 1 to the next number of the type.
double roundoff(at::ScalarType type) { return type == at::kHalf ? 0x1p-11 : type == at::kBFloat16 ? 0x1p-8 : 0x1p-24; }

/// Expects a sum of `terms` products in fp32, whose sizes add up to `size`, rounded to `type` once.
void expect_rounded_once(const at::Tensor& got, const at::Tensor& want, int64_t terms, double size, at::ScalarType type,
                         const std::string& what) {
  const at::Tensor limit = want.abs() * roundoff(type) + 2 * static_cast<double>(terms) * size * roundoff(at::kFloat);
  EXPECT_TRUE((got.to(at::kDouble) - want).abs().le(limit).all().item<bool>())
      << what << ": off by " << (got.to(at::kDouble) - want).abs().max().item<double>() << ", values up to "
      << want.abs().max().item<double>();
}

constexpr at::ScalarType kNarrow[] = {at::kBFloat16, at::kHalf};

// The contributions of ranks cancel, except for some digits that are lost if a rank rounds its own part first.
TEST(SequencePrecision, SumsGradientsOfAllRanksBeforeRounding) {
  constexpr int64_t kRanks = 3;
  for (const char* mode : {"gather", "ring", "ring-self-attention"})
    for (const auto type : kNarrow) {
      const SequenceCase c{.config = config_of(mode, kRanks), .heads = 2, .kv_heads = 2, .options = {.causal = false}};
      const nn::SequenceCut cut = parallel::zigzag(c.tokens, kRanks);
      const at::Tensor dout = SequenceInputs(c).gradient.to(type).to(at::kDouble);
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

// All ranks read one key-value head. One rank contributes 1, the others less than 1's roundoff each. All contributions
// are numbers of the type, and together the small ones exceed the roundoff.
TEST(SequencePrecision, SumsGradientsOfASharedHeadBeforeRounding) {
  constexpr int64_t kRanks = 8;
  for (const auto type : kNarrow) {
    const SequenceCase c{
        .config = {kRanks, "ulysses"}, .tokens = 16, .heads = kRanks, .kv_heads = 1, .options = {.causal = false}};
    const at::Tensor dout = at::full({kSequenceRows, c.tokens, c.heads, kSequenceHeadSize},
                                     roundoff(type) * (1 - roundoff(type)), at::TensorOptions().dtype(at::kDouble));
    dout.select(2, kRanks / 2).fill_(1);
    const at::Tensor want = dout.mean(1, /*keepdim=*/true).sum(2, /*keepdim=*/true);
    comm::run_ranks(kRanks, [&](comm::World& world) {
      expect_rounded_once(gradient_of_means(world, c, dout.to(type)), want, c.tokens + kRanks,
                          want.max().item<double>(), type, concat("ulysses, ", type));
    });
  }
}

}  // namespace
}  // namespace colossal::test::sequence_precision_test
