#include "colossal/ops/attention/attention.h"

#include <gmock/gmock.h>

#include "colossal/base/error.h"
#include "ops/compare.h"
#include "support/thrown_message.h"

namespace colossal::ops::attention_test {
namespace {

enum class Documents { None, Runs, Interleaved };

struct Case {
  int64_t batch, heads, kv_heads, queries, keys, size;
  bool causal = true;
  Documents documents = Documents::None;
  int64_t window = 0;
  bool alibi = false;
  double soft_cap = 0;
  bool lengths = false;
};

std::string name_of(const Case& c) {
  return concat("B ", c.batch, " S ", c.queries, " T ", c.keys, " N ", c.heads, "/", c.kv_heads, " D ", c.size,
                " causal ", c.causal, " documents ", static_cast<int>(c.documents), " window ", c.window, " alibi ",
                c.alibi, " cap ", c.soft_cap, " lengths ", c.lengths);
}

AttentionMask mask_of(const Case& c) {
  AttentionMask mask{.causal = c.causal, .window = c.window, .soft_cap = c.soft_cap};
  // Runs: documents of c.keys / 3 tokens, with different borders in each row. Interleaved: each key has another
  // document than the key before.
  const auto position = at::arange(c.keys, at::kLong).unsqueeze(0) + at::arange(c.batch, at::kLong).unsqueeze(1);
  if (c.documents == Documents::Runs) mask.documents = position.div((c.keys + 2) / 3, "floor").contiguous();
  if (c.documents == Documents::Interleaved) mask.documents = position.remainder(3).contiguous();
  if (c.alibi) mask.alibi = alibi_slopes(c.heads);
  if (c.lengths)
    for (int64_t row = 0; row < c.batch; ++row) mask.lengths.push_back(std::max(c.queries, c.keys - 2 * row - 1));
  return mask;
}

Tensors inputs_of(const Case& c) {
  return {normal({c.batch, c.heads, c.queries, c.size}, 1), normal({c.batch, c.kv_heads, c.keys, c.size}, 2),
          normal({c.batch, c.kv_heads, c.keys, c.size}, 3)};
}

// Sizes around the query blocks of 30, few and many queries, and various numbers of heads.
const std::vector<Case> kPlain{
    {1, 1, 1, 1, 1, 1},        {2, 3, 3, 5, 5, 8},      {2, 3, 3, 5, 5, 8, false}, {2, 4, 2, 7, 7, 6},
    {1, 6, 1, 33, 33, 16},     {2, 4, 2, 1, 9, 8},      {2, 4, 2, 3, 9, 8},        {1, 2, 2, 130, 130, 64},
    {1, 2, 1, 6, 9, 4, false}, {1, 2, 1, 200, 200, 40},
};

// Returns every combination of mask options, with a size that no block divides, and with keys from before the queries.
std::vector<Case> combinations(int64_t queries) {
  std::vector<Case> all;
  for (const bool causal : {true, false})
    for (const auto documents : {Documents::None, Documents::Runs, Documents::Interleaved})
      for (const int64_t window : {int64_t{0}, int64_t{4}, int64_t{17}})
        for (const bool alibi : {false, true})
          for (const double soft_cap : {0.0, 1.5})
            for (const bool lengths : {false, true})
              all.push_back({.batch = 2,
                             .heads = 6,
                             .kv_heads = 2,
                             .queries = queries,
                             .keys = queries + 14,
                             .size = 5,
                             .causal = causal,
                             .documents = documents,
                             .window = window,
                             .alibi = alibi,
                             .soft_cap = soft_cap,
                             .lengths = lengths});
  return all;
}

// Backward reads the rounded output. ATen's attention of narrow dtypes, which serves few queries and fp16, rounds the
// weights before their products.
constexpr double kIntermediates = 2;

void expect_reference(const Case& c, at::ScalarType type, const std::function<AttentionPath(const Tensors&)>& path) {
  SCOPED_TRACE(name_of(c));
  const auto mask = mask_of(c);
  expect_equal_operators([&](const Tensors& t) { return Tensors{attention_on(path(t), t[0], t[1], t[2], mask)}; },
                         [&](const Tensors& t) { return Tensors{attention_reference(t[0], t[1], t[2], mask)}; },
                         inputs_of(c), type, c.keys + c.size, kIntermediates);
}

TEST(Attention, EqualsItsReference) {
  for (const auto type : float_types())
    for (const auto& c : kPlain) {
      SCOPED_TRACE(name_of(c));
      expect_equal_operators(
          [&](const Tensors& t) { return Tensors{attention(t[0], t[1], t[2], mask_of(c))}; },
          [&](const Tensors& t) { return Tensors{attention_reference(t[0], t[1], t[2], mask_of(c))}; }, inputs_of(c),
          type, c.keys + c.size, kIntermediates);
    }
}

TEST(Attention, KernelEqualsTheReferenceUnderEveryMask) {
  for (const auto& c : combinations(47))
    for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16})
      expect_reference(c, type, [](const Tensors&) { return AttentionPath::Kernel; });
}

// Two of the five heads that share a key-value head are processed together, so one remains. The last of several key
// blocks is short.
TEST(Attention, EqualsTheReferenceForSplitHeadGroups) {
  const auto kernel = [](const Tensors&) { return AttentionPath::Kernel; };
  const Case causal{.batch = 1, .heads = 10, .kv_heads = 2, .queries = 700, .keys = 700, .size = 8};
  Case capped = causal;
  capped.causal = false, capped.soft_cap = 1.5, capped.heads = 5, capped.kv_heads = 1;
  expect_reference(causal, at::kBFloat16, kernel);
  expect_reference(capped, at::kDouble, kernel);
}

TEST(Attention, EqualsTheReferenceOnGpuPathsUnderEveryMask) {
  for (const int64_t queries : {1, 5, 47})
    for (const auto& c : combinations(queries))
      for (const auto type : {at::kDouble, at::kFloat})
        expect_reference(c, type, [&](const Tensors& t) { return attention_path(false, t[0], t[1], mask_of(c)); });
}

// Part of a sequence of 80 tokens: keys 20 to 52, queries 5 to 25 and 40 to 59. Some queries see none of these keys.
constexpr int64_t kPartKeys = 33, kPartQueries = 41;

AttentionMask part_of(Case c) {
  c.queries = c.keys = 80;
  AttentionMask mask = mask_of(c);
  mask.queries = {{5, 21}, {40, 20}}, mask.keys = {{20, kPartKeys}};
  if (!mask.documents.defined()) return mask;
  mask.query_documents = at::cat({mask.documents.narrow(1, 5, 21), mask.documents.narrow(1, 40, 20)}, 1);
  mask.documents = mask.documents.narrow(1, 20, kPartKeys);
  return mask;
}

TEST(Attention, EqualsTheReferenceForPartsOfASequence) {
  for (Case c : combinations(kPartQueries)) {
    if (c.lengths) continue;
    c.keys = kPartKeys;
    SCOPED_TRACE(name_of(c));
    const auto mask = part_of(c);
    for (const auto type : {at::kDouble, at::kFloat})
      expect_equal_operators(
          [&](const Tensors& t) { return Tensors{attention_on(AttentionPath::Kernel, t[0], t[1], t[2], mask)}; },
          [&](const Tensors& t) { return Tensors{attention_reference(t[0], t[1], t[2], mask)}; }, inputs_of(c), type,
          c.keys + c.size, kIntermediates);
  }
}

// Zigzag split: a rank has the queries at both ends of the sequence, and all keys.
TEST(Attention, EqualsTheWholeSequenceForSomeQueries) {
  for (Case c : combinations(60)) {
    if (c.lengths) continue;
    c.keys = c.queries;
    SCOPED_TRACE(name_of(c));
    const auto ends = [](const at::Tensor& x, int64_t dim) {
      return at::cat({x.narrow(dim, 0, 16), x.narrow(dim, 47, 13)}, dim);
    };
    const auto in = inputs_of(c);
    auto mask = mask_of(c);
    const auto want = ends(attention(in[0], in[1], in[2], mask), 2);
    mask.queries = {{0, 16}, {47, 13}};
    if (mask.documents.defined()) mask.query_documents = ends(mask.documents, 1);
    expect_close(attention(ends(in[0], 2), in[1], in[2], mask), want, at::kDouble, c.keys, "kernel");
    expect_close(attention_reference(ends(in[0], 2), in[1], in[2], mask), want, at::kDouble, c.keys, "reference");
  }
}

TEST(Attention, ReturnsZerosForQueriesWithoutKeys) {
  const auto in = inputs_of({1, 2, 1, 40, 30, 4});
  const AttentionMask mask{.queries = {{0, 40}}, .keys = {{10, 30}}};
  for (const auto path : {AttentionPath::Kernel, AttentionPath::Reference}) {
    const auto out = attention_on(path, in[0], in[1], in[2], mask);
    EXPECT_TRUE(out.slice(2, 0, 10).eq(0).all().item<bool>());
    expect_close(out.slice(2, 10), attention(in[0].slice(2, 10), in[1], in[2], {}), at::kDouble, 30, "others");
  }
}

TEST(Attention, UsesLibTorchForSupportedMasks) {
  using enum AttentionPath;
  const auto path = [](bool has_kernel, const Case& c) {
    const auto in = inputs_of(c);
    return attention_path(has_kernel, in[0], in[1], mask_of(c));
  };
  const Case plain{1, 2, 2, 16, 16, 8};
  const auto with = [&](const std::function<void(Case&)>& change) {
    Case c = plain;
    change(c);
    return path(false, c);
  };
  EXPECT_EQ(path(true, plain), Kernel);
  EXPECT_EQ(path(true, {1, 2, 2, 1, 16, 8}), Library) << "few queries";
  EXPECT_EQ(path(true, {.batch = 1, .heads = 2, .kv_heads = 2, .queries = 1, .keys = 16, .size = 8, .soft_cap = 9}),
            Kernel);
  EXPECT_EQ(path(false, plain), Library);
  EXPECT_EQ(with([](Case& c) { c.causal = false; }), Library);
  EXPECT_EQ(with([](Case& c) { c.keys = 20; }), Masked) << "its causal mask starts at the first key";
  EXPECT_EQ(with([](Case& c) { c.documents = Documents::Runs; }), Masked);
  EXPECT_EQ(with([](Case& c) { c.alibi = true; }), Masked);
  EXPECT_EQ(with([](Case& c) { c.lengths = true, c.keys = 20; }), Masked);
  EXPECT_EQ(with([](Case& c) { c.window = 15; }), Masked);
  EXPECT_EQ(with([](Case& c) { c.window = 16; }), Library) << "a window that sees everything";
  EXPECT_EQ(with([](Case& c) { c.queries = 1, c.window = 4; }), Library) << "keys before the window are cut off";
  EXPECT_EQ(with([](Case& c) { c.soft_cap = 3; }), Reference);
  const auto few = inputs_of({1, 2, 2, 1, 16, 8});
  EXPECT_EQ(attention_path(true, few[0], few[1], {.queries = {{20, 1}}, .keys = {{8, 16}}}), Kernel);
  EXPECT_EQ(attention_path(false, few[0], few[1], {.queries = {{20, 1}}, .keys = {{8, 16}}}), Reference);
}

// Returns the keys that a query sees: those whose values have an effect on its output.
std::vector<int64_t> seen_by(int64_t query, int64_t keys, const AttentionMask& mask) {
  const at::Tensor v = at::zeros({1, 1, keys, 1}, at::kDouble).requires_grad_();
  const at::Tensor k = at::zeros({1, 1, keys, 1}, at::kDouble);
  attention_on(AttentionPath::Kernel, k, k, v, mask).select(2, query).sum().backward();
  const at::Tensor seen = v.grad().flatten().nonzero().flatten();
  return {seen.data_ptr<int64_t>(), seen.data_ptr<int64_t>() + seen.numel()};
}

TEST(Attention, EqualsTransformersWindows) {
  // Mistral: key > query - window and key <= query. ModernBERT: |key - query| <= window.
  EXPECT_EQ(seen_by(50, 80, {.window = 3}), (std::vector<int64_t>{48, 49, 50}));
  EXPECT_EQ(seen_by(1, 80, {.window = 3}), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(seen_by(50, 80, {.causal = false, .window = 2}), (std::vector<int64_t>{48, 49, 50, 51, 52}));
  EXPECT_EQ(seen_by(79, 80, {.causal = false, .window = 2}), (std::vector<int64_t>{77, 78, 79}));
}

TEST(Attention, EqualsSlopesOfThePaperAndBloom) {
  EXPECT_TRUE(
      at::equal(alibi_slopes(8), at::tensor({0.5, 0.25, 0.125, 0x1p-4, 0x1p-5, 0x1p-6, 0x1p-7, 0x1p-8}, at::kDouble)));
  // Six heads: the four slopes for 4 heads, 2^-2, ..., then the first and third slope for 8 heads.
  EXPECT_TRUE(at::equal(alibi_slopes(6), at::tensor({0x1p-2, 0x1p-4, 0x1p-6, 0x1p-8, 0x1p-1, 0x1p-3}, at::kDouble)));
}

class AttentionLengths : public testing::TestWithParam<int64_t> {};

TEST_P(AttentionLengths, IgnoresKeysPastTheLength) {
  const Case c{.batch = 2, .heads = 2, .kv_heads = 1, .queries = GetParam(), .keys = 20, .size = 4, .lengths = true};
  const auto mask = mask_of(c);
  auto in = inputs_of(c);
  const auto want = attention(in[0], in[1], in[2], mask);
  for (int64_t row = 0; row < c.batch; ++row)
    for (const int i : {1, 2}) in[i][row].slice(1, mask.lengths[row]).fill_(1e6);
  EXPECT_TRUE(at::equal(attention(in[0], in[1], in[2], mask), want));
  for (int64_t row = 0; row < c.batch; ++row) {
    const auto alone = [&](int i) {
      return in[i].narrow(0, row, 1).slice(2, 0, i > 0 ? mask.lengths[row] : c.queries);
    };
    expect_close(want.narrow(0, row, 1), attention(alone(0), alone(1), alone(2), {}), at::kDouble, c.keys, "row");
  }
}

INSTANTIATE_TEST_SUITE_P(FewQueriesAndMany, AttentionLengths, testing::Values(1, 9));

TEST(Attention, KeepsTheLayoutOfFusedProjections) {
  const int64_t batch = 2, length = 70, heads = 3, size = 8;
  const auto run = [&](bool fused, const at::Tensor& x) {
    const auto parts = x.split_with_sizes({heads * size, heads * size, heads * size}, -1);
    Tensors views;
    for (const auto& part : parts) {
      auto view = part.view({batch, length, heads, size}).transpose(1, 2);
      views.push_back(fused ? view : view.contiguous());
    }
    return fused ? attention(views[0], views[1], views[2], {}) : attention_reference(views[0], views[1], views[2], {});
  };
  const auto x = normal({batch, length, 3 * heads * size}, 1);
  expect_equal_operators([&](const Tensors& t) { return Tensors{run(true, t[0])}; },
                         [&](const Tensors& t) { return Tensors{run(false, t[0])}; }, {x}, at::kDouble, length);
  EXPECT_TRUE(run(true, x).transpose(1, 2).is_contiguous());
}

TEST(Attention, IgnoresLaterPositions) {
  const auto q = normal({1, 2, 40, 8}, 1), k = normal({1, 2, 40, 8}, 2), v = normal({1, 2, 40, 8}, 3);
  auto later = v.clone();
  later.slice(2, 20).fill_(1e6);
  EXPECT_TRUE(at::equal(attention(q, k, v, {}).slice(2, 0, 20), attention(q, k, later, {}).slice(2, 0, 20)));
}

TEST(Attention, SeparatesPackedDocuments) {
  const auto q = normal({1, 2, 12, 8}, 1), k = normal({1, 2, 12, 8}, 2), v = normal({1, 2, 12, 8}, 3);
  AttentionMask mask;
  mask.documents = at::tensor({0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2}, at::kLong).unsqueeze(0);
  const auto packed = attention(q, k, v, mask);
  for (const auto& [from, to] : {std::pair{0, 5}, std::pair{5, 9}, std::pair{9, 12}})
    expect_close(packed.slice(2, from, to),
                 attention(q.slice(2, from, to), k.slice(2, from, to), v.slice(2, from, to), {}), at::kDouble, 12,
                 "document");
}

TEST(Attention, UsesTheGivenScale) {
  const auto in = inputs_of({1, 2, 2, 9, 9, 4});
  AttentionMask mask;
  mask.scale = 0.125;
  expect_close(attention(in[0], in[1], in[2], mask), attention(in[0] * 0.25, in[1], in[2], {}), at::kDouble, 9,
               "scaled");
}

TEST(Attention, ReturnsShapesForMetaTensors) {
  const auto meta = at::TensorOptions(at::kMeta).dtype(at::kFloat);
  const at::Tensor q = at::empty({2, 4, 5, 6}, meta).requires_grad_(), kv = at::empty({2, 2, 5, 6}, meta);
  // Slopes may be on the host or on the queries' device.
  for (const at::Tensor& slopes : {at::Tensor(), alibi_slopes(4), alibi_slopes(4).to(at::kMeta)}) {
    const at::Tensor out = attention(q, kv, kv, {.alibi = slopes});
    EXPECT_EQ(out.sizes(), q.sizes());
    out.sum().backward();
    EXPECT_EQ(q.grad().sizes(), q.sizes());
  }
}

TEST(Attention, RefusesMismatchedShapes) {
  const auto refused = [](const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask = {}) {
    return test::thrown_message([&] { attention(q, k, k, mask); });
  };
  const auto q = normal({1, 4, 5, 8}, 1);
  EXPECT_THAT(refused(q, normal({1, 3, 5, 8}, 1)), testing::HasSubstr("heads must be divisible by key-value heads"));
  EXPECT_THAT(refused(q, normal({1, 4, 5, 6}, 1)), testing::HasSubstr("q must be [B,N,S,D]"));
  const auto few = normal({1, 4, 3, 8}, 1);
  EXPECT_THAT(refused(q, few), testing::HasSubstr("got 5 queries, 3 keys"));
  EXPECT_THAT(refused(q, few, {.causal = false, .window = 2}), testing::HasSubstr("got 5 queries, 3 keys"));
  EXPECT_THAT(refused(q, q, {.documents = at::zeros({1, 4}, at::kLong)}), testing::HasSubstr("int64 [B,T]"));
  EXPECT_THAT(refused(q, q, {.window = -1}),
              testing::HasSubstr("window and soft_cap must be 0 (none) or more: got -1"));
  EXPECT_THAT(refused(q, q, {.alibi = alibi_slopes(3)}), testing::HasSubstr("each of the 4 query heads: got [3]"));
  EXPECT_THAT(refused(q, q, {.lengths = {5, 5}}), testing::HasSubstr("each of the 1 rows of the batch: got 2"));
  EXPECT_THAT(refused(q, q, {.lengths = {6}}), testing::HasSubstr("between its 5 queries and the 5 keys"));
  EXPECT_THAT(refused(q, few, {.queries = {{0, 2}, {7, 2}}}),
              testing::HasSubstr("the positions of the 5 queries, without lengths: got 4 positions and 0"));
  EXPECT_THAT(refused(q, few, {.documents = at::zeros({1, 3}, at::kLong), .queries = {{0, 5}}}),
              testing::HasSubstr("the documents of queries must be int64 [B,S]"));
}

}  // namespace
}  // namespace colossal::ops::attention_test
