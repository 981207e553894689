// Attention over parts of the keys, merged, must equal ops::attention over all of them: results and gradients, for
// every mask, number of parts and order.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/ops/attention/partial.h"
#include "colossal/tensor/flops.h"
#include "ops/compare.h"
#include "support/thrown_message.h"

namespace colossal::ops::partial_attention_test {
namespace {

constexpr int64_t kBatch = 2, kHeads = 6, kKvHeads = 2, kSize = 5;
// A sequence of 80 tokens. The queries are tokens 10-29 and 47-67; the 53 keys start at token 17.
constexpr int64_t kSequence = 80, kQueries = 41, kKeys = 53, kFirstKey = 17;

/// Arguments of attention(), whole or of one part.
struct Inputs {
  at::Tensor q = normal({kBatch, kHeads, kQueries, kSize}, 1), k = normal({kBatch, kKvHeads, kKeys, kSize}, 2),
             v = normal({kBatch, kKvHeads, kKeys, kSize}, 3), dout = normal({kBatch, kHeads, kQueries, kSize}, 4);
  AttentionMask mask{.queries = {{10, 20}, {47, 21}}, .keys = {{kFirstKey, kKeys}}};

  void set_documents(const at::Tensor& of_sequence) {  // [B, kSequence]
    mask.documents = of_sequence.narrow(1, kFirstKey, kKeys).contiguous();
    mask.query_documents = at::cat({of_sequence.narrow(1, 10, 20), of_sequence.narrow(1, 47, 21)}, 1);
  }
};

using Runs = std::vector<PositionRun>;

at::Tensor those(const at::Tensor& x, int64_t dim, const Runs& runs) {
  std::vector<at::Tensor> each;
  for (const PositionRun& run : runs) each.push_back(x.narrow(dim, run.first, run.size));
  return at::cat(each, dim);
}

/// Returns the arguments for some runs of the keys of `in`, with their mask.
Inputs part_of(const Inputs& in, const Runs& runs) {
  Inputs part = in;
  part.k = those(in.k, 2, runs), part.v = those(in.v, 2, runs);
  const int64_t first = in.mask.keys.front().first;
  part.mask.keys.clear();
  for (const PositionRun& run : runs) part.mask.keys.push_back({first + run.first, run.size});
  if (in.mask.documents.defined()) part.mask.documents = those(in.mask.documents, 1, runs);
  return part;
}

/// Splits the keys into twice as many runs as `parts`, of unequal lengths. Each part has one run from either end. The
/// order of the parts is neither theirs nor its reverse. The two runs of the middle part touch.
std::vector<Runs> runs_of(int64_t keys, int64_t parts) {
  Runs runs;
  for (int64_t i = 0, first = 0, count = 2 * parts; i < count; ++i) {
    const int64_t end = i + 1 == count ? keys : keys * (i + 1) * (i + 3) / (count * (count + 2));
    runs.push_back({first, end - first});
    first = end;
  }
  std::vector<Runs> dealt;
  for (int64_t i = 0; i < parts; ++i) dealt.push_back({runs[i], runs[2 * parts - 1 - i]});
  std::rotate(dealt.begin(), dealt.begin() + parts / 2, dealt.end());
  if (parts > 2) std::swap(dealt[0], dealt[1]);
  return dealt;
}

using Forward = decltype(&partial_attention);
using Backward = decltype(&partial_attention_backward);

/// Returns what expect_parts compares: out, dq, dk, dv.
Tensors by_parts(const Inputs& in, int64_t parts, Forward forward, Backward backward) {
  PartialAttention whole;
  const auto dealt = runs_of(in.k.size(2), parts);
  for (const Runs& runs : dealt) {
    const Inputs part = part_of(in, runs);
    merge(whole, forward(part.q, part.k, part.v, part.mask));
  }
  const at::Tensor dq = at::zeros_like(whole.out);
  const auto wide = whole.out.options();
  const at::Tensor dk = at::zeros(in.k.sizes(), wide), dv = at::zeros(in.v.sizes(), wide);
  for (const Runs& runs : dealt) {
    const Inputs part = part_of(in, runs);
    const AttentionGradients d = backward(part.dout, part.q, part.k, part.v, part.mask, whole);
    if (!d.q.defined()) continue;  // all gradients of this part are zero
    dq.add_(d.q);
    for (int64_t first = 0; const PositionRun& run : runs) {
      dk.narrow(2, run.first, run.size).copy_(d.k.narrow(2, first, run.size));
      dv.narrow(2, run.first, run.size).copy_(d.v.narrow(2, first, run.size));
      first += run.size;
    }
  }
  return {whole.out, dq, dk, dv};
}

Tensors at_once(const Inputs& in) {
  const at::Tensor q = in.q.detach().clone().requires_grad_(), k = in.k.detach().clone().requires_grad_(),
                   v = in.v.detach().clone().requires_grad_();
  const at::Tensor out = attention(q, k, v, in.mask);
  out.backward(in.dout);
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

void expect_parts(const Inputs& in, at::ScalarType type = at::kDouble) {
  const Tensors want = at_once(in);
  Inputs given = in;
  for (at::Tensor* x : {&given.q, &given.k, &given.v, &given.dout}) *x = x->to(type);
  const auto compare = [&](const Tensors& got, const std::string& what) {
    for (size_t i = 0; i < want.size(); ++i)
      expect_close(got[i], want[i], type == at::kDouble ? type : at::kFloat, in.k.size(2) + kSize,
                   what + ", value or gradient " + std::to_string(i));
  };
  for (const int64_t parts : {1, 2, 3, 5}) {
    for (const auto set : runnable_instruction_sets()) {
      const InstructionSetScope scope(set);
      compare(by_parts(given, parts, partial_attention, partial_attention_backward),
              concat(name(set), ", ", parts, " parts"));
    }
    compare(by_parts(given, parts, partial_attention_reference, partial_attention_backward_reference),
            concat("reference, ", parts, " parts"));
  }
}

// Some queries see keys of no part, some of a single part. Beside other work the first evaluation of the reference in a
// process differs from all later ones by 1e-10, once in twenty runs (docs/log.md, 2026-11-29), so it is not compared.
TEST(PartialAttention, EqualsAttentionUnderEveryMask) {
  by_parts({}, 1, partial_attention_reference, partial_attention_backward_reference);
  const at::Tensor position =
      at::arange(kSequence, at::kLong).unsqueeze(0) + at::arange(kBatch, at::kLong).unsqueeze(1) * 3;
  for (const bool causal : {true, false})
    for (const int documents : {0, 1, 2})
      for (const int64_t window : {int64_t{0}, int64_t{4}, int64_t{17}})
        for (const bool biased : {false, true}) {
          Inputs in;
          in.mask.causal = causal, in.mask.window = window;
          if (documents == 1) in.set_documents(position.div(23, "floor"));
          if (documents == 2) in.set_documents(position.remainder(3));
          if (biased) in.mask.alibi = alibi_slopes(kHeads), in.mask.soft_cap = 1.5, in.mask.scale = 0.7;
          SCOPED_TRACE(concat("causal ", causal, ", documents ", documents, ", window ", window, ", biased ", biased));
          expect_parts(in);
        }
}

// Odd sizes, queries at the last positions of the keys, and heads with a key head each or one for all.
TEST(PartialAttention, EqualsAttentionForOddSizes) {
  for (const auto& [heads, kv_heads, queries, keys, size] :
       std::vector<std::array<int64_t, 5>>{{3, 3, 7, 7, 3}, {5, 1, 1, 11, 8}, {1, 1, 33, 65, 17}, {2, 1, 64, 64, 32}}) {
    Inputs in{normal({1, heads, queries, size}, 1), normal({1, kv_heads, keys, size}, 2),
              normal({1, kv_heads, keys, size}, 3), normal({1, heads, queries, size}, 4)};
    in.mask.queries = {{keys - queries, queries}}, in.mask.keys = {{0, keys}};
    SCOPED_TRACE(concat(heads, " heads, ", queries, " queries, ", keys, " keys"));
    expect_parts(in);
  }
}

// Narrow inputs are computed, merged and returned in fp32, and the inputs themselves are not rounded.
TEST(PartialAttention, ComputesNarrowDtypesInFp32) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    Inputs in;
    for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.dout}) *x = x->to(type).to(at::kDouble);
    expect_parts(in, type);
    EXPECT_EQ(partial_attention(in.q.to(type), in.k.to(type), in.v.to(type), in.mask).out.scalar_type(), at::kFloat);
  }
}

TEST(PartialAttention, ReturnsLogSums) {
  const Inputs in;
  const auto got = partial_attention(in.q, in.k, in.v, in.mask),
             want = partial_attention_reference(in.q, in.k, in.v, in.mask);
  const at::Tensor blind = want.log_sums.eq(-std::numeric_limits<double>::infinity());
  EXPECT_EQ(blind.sum().item<int64_t>(), kBatch * kHeads * (kFirstKey - 10)) << "queries before the first key";
  EXPECT_TRUE(at::equal(got.log_sums.eq(-std::numeric_limits<double>::infinity()), blind));
  expect_close(got.log_sums.masked_fill(blind, 0), want.log_sums.masked_fill(blind, 0), at::kDouble, kKeys, "sums");
  EXPECT_TRUE(got.out.masked_select(blind.unsqueeze(-1)).eq(0).all().item<bool>());
}

/// Returns how far attention at once and in parts may differ in out, dq, dk and dv, because scores are rounded. If
/// `of_score` is the rounding of a score s, each weight p is off by a factor of 1 + 2 of_score, for e^s and for their
/// sum. The gradient of a score, p (dp - sum p dp), is off by 6 of_score max|dp| p. Both ways are rounded. The weights
/// of a query add up to 1, so sums over keys are at most their largest term. Sums over queries are at most the number
/// of queries times their largest term.
std::vector<double> rounding_of_scores(const Inputs& in) {
  const auto most = [](const at::Tensor& x) { return x.abs().max().item<double>(); };
  const auto by_query_heads = [&](const at::Tensor& kv) { return kv.repeat_interleave(kHeads / kKvHeads, 1); };
  const auto products = [&](const at::Tensor& x, const at::Tensor& kv) {
    return most(at::matmul(x, by_query_heads(kv).transpose(2, 3)));
  };
  const double scale = 1 / std::sqrt(kSize), of_score = 4 * 0x1p-52 * std::sqrt(kSize) * scale * products(in.q, in.k);
  const double of_weight = 2 * 2 * of_score, of_gradient = 2 * 6 * of_score * products(in.dout, in.v) * scale;
  const double queries = kQueries * kHeads / kKvHeads;  // number of queries that read a key
  return {of_weight * most(in.v), of_gradient * most(in.k), of_gradient * queries * most(in.q),
          of_weight * queries * most(in.dout)};
}

// Scores are in the thousands, so their exponentials overflow every dtype.
TEST(PartialAttention, MergesLargeScoresWithoutOverflow) {
  Inputs in;
  in.q = in.q * 1000;
  const Tensors want = at_once(in);
  const std::vector<double> limits = rounding_of_scores(in);
  for (const int64_t parts : {2, 3, 5}) {
    const Tensors got = by_parts(in, parts, partial_attention, partial_attention_backward);
    for (size_t i = 0; i < want.size(); ++i) {
      const at::Tensor limit = tolerance(want[i], at::kDouble, kKeys) + limits[i];
      EXPECT_TRUE((got[i] - want[i]).abs().le(limit).all().item<bool>()) << parts << " parts, value or gradient " << i;
    }
  }
}

// Keys are after all queries, before all of their windows, or of other documents.
TEST(PartialAttention, IsUndefinedWithoutVisibleKeys) {
  Inputs in;
  const auto sees = [&](const AttentionMask& mask) {
    const PartialAttention part = partial_attention(in.q, in.k, in.v, mask);
    const PartialAttention whole{at::zeros_like(in.q), at::zeros({kBatch, kHeads, kQueries}, at::kDouble)};
    EXPECT_EQ(partial_attention_backward(in.dout, in.q, in.k, in.v, mask, whole).k.defined(), part.out.defined());
    return part.out.defined();
  };
  EXPECT_FALSE(sees({.queries = {{0, kQueries}}, .keys = {{kQueries, kKeys}}}));
  EXPECT_TRUE(sees({.queries = {{0, kQueries}}, .keys = {{kQueries - 1, kKeys}}}));
  EXPECT_FALSE(sees({.window = 5, .queries = {{kKeys + 4, kQueries}}}));
  EXPECT_TRUE(sees({.window = 5, .queries = {{kKeys + 3, kQueries}}}));
  const auto with_documents = [&](int64_t of_queries) {
    AttentionMask mask{.documents = at::arange(kKeys, at::kLong).div(20, "floor").repeat({kBatch, 1})};  // ids 0 to 2
    mask.queries = {{kKeys, kQueries}};
    mask.query_documents = at::full({kBatch, kQueries}, of_queries, at::kLong);
    return mask;
  };
  EXPECT_FALSE(sees(with_documents(3)));
  EXPECT_TRUE(sees(with_documents(2)));
}

// Some queries of the first run see no key.
TEST(PartialAttention, MergesIntoSlices) {
  const Inputs in;
  const PartialAttention want = partial_attention(in.q, in.k, in.v, in.mask);
  const PartialAttention whole{at::zeros_like(want.out),
                               at::full_like(want.log_sums, -std::numeric_limits<double>::infinity())};
  for (int64_t first = 0; const PositionRun& run : in.mask.queries) {
    AttentionMask mask = in.mask;
    mask.queries = {run};
    PartialAttention view{whole.out.narrow(2, first, run.size), whole.log_sums.narrow(2, first, run.size)};
    merge(view, partial_attention(in.q.narrow(2, first, run.size), in.k, in.v, mask));
    merge(view, {});
    first += run.size;
  }
  expect_close(whole.out, want.out, at::kDouble, kKeys, "result");
  EXPECT_TRUE(at::allclose(whole.log_sums, want.log_sums));
}

// Counts two products forward and four backward for all pairs that the mask lets through, for any split.
TEST(PartialAttention, CountsTheFlopsOfAttention) {
  Inputs in;
  const auto counted = [](const auto& run) {
    const tensor::FlopCount count;
    run();
    return count.total();
  };
  const double want = counted([&] { at_once(in); });
  EXPECT_GT(want, 0);
  for (const int64_t parts : {1, 3})
    EXPECT_EQ(counted([&] { by_parts(in, parts, partial_attention, partial_attention_backward); }), want);
  // Packed documents: half the sum of their squared lengths with a causal mask, because a query sees its document so
  // far.
  in.set_documents(at::arange(kSequence, at::kLong).div(23, "floor").repeat({kBatch, 1}));
  double pairs = 0;
  for (const PositionRun& run : in.mask.queries)
    for (int64_t at = run.first; at < run.first + run.size; ++at)
      pairs += static_cast<double>(
          std::max<int64_t>(0, std::min(at + 1, kFirstKey + kKeys) - std::max(at - at % 23, kFirstKey)));
  EXPECT_EQ(counted([&] { at_once(in); }), 12 * pairs * kBatch * kHeads * kSize);
  EXPECT_EQ(counted([&] { by_parts(in, 3, partial_attention, partial_attention_backward); }),
            12 * pairs * kBatch * kHeads * kSize);
}

TEST(PartialAttention, RefusesUnsortedKeys) {
  Inputs in;
  const auto message = [&] { return test::thrown_message([&] { partial_attention(in.q, in.k, in.v, in.mask); }); };
  in.mask.keys = {{40, 13}, {17, 40}};
  EXPECT_THAT(message(), testing::HasSubstr("the runs of the mask's keys must ascend: got one at 17 after one that "
                                            "ends at 53"));
  in.mask.keys = {{17, 40}};
  EXPECT_THAT(message(), testing::HasSubstr("must be the positions of the 53 keys: got 40 positions"));
  in.mask.keys = {{17, kKeys}}, in.mask.queries = {};
  EXPECT_THAT(message(), testing::HasSubstr("must have those of queries (AttentionMask::queries): got 1 runs"));
}

// Meta tensors have sizes only, and operations are counted as on other devices.
TEST(PartialAttention, ReturnsShapesForMetaTensors) {
  Inputs in;
  for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.dout}) *x = x->to(at::kBFloat16).to(at::kMeta);
  const Tensors got = by_parts(in, 2, partial_attention, partial_attention_backward);
  EXPECT_EQ(got[0].sizes(), in.q.sizes());
  EXPECT_EQ(got[2].sizes(), in.k.sizes());
  EXPECT_EQ(got[3].scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace colossal::ops::partial_attention_test
