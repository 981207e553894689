#include "colossal/ops/attention.h"

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops::attention_test {
namespace {

struct Case {
  int64_t batch, heads, kv_heads, queries, keys, size;
  bool causal, documents;
};

AttentionMask mask_of(const Case& c) {
  AttentionMask mask;
  mask.causal = c.causal;
  if (c.documents)
    mask.documents = (at::arange(c.keys, at::kLong).unsqueeze(0) + at::arange(c.batch, at::kLong).unsqueeze(1))
                         .div(3, "floor")
                         .contiguous();
  return mask;
}

Tensors inputs_of(const Case& c) {
  return {normal({c.batch, c.heads, c.queries, c.size}, 1), normal({c.batch, c.kv_heads, c.keys, c.size}, 2),
          normal({c.batch, c.kv_heads, c.keys, c.size}, 3)};
}

const std::vector<Case> kCases{
    {1, 1, 1, 1, 1, 1, true, false},      {2, 3, 3, 5, 5, 8, true, false},      {2, 3, 3, 5, 5, 8, false, false},
    {2, 4, 2, 7, 7, 6, true, false},      {1, 6, 1, 33, 33, 16, true, false},   {2, 4, 2, 1, 9, 8, true, false},
    {2, 4, 2, 3, 9, 8, true, false},      {1, 2, 2, 130, 130, 64, true, false}, {2, 4, 2, 8, 8, 8, true, true},
    {2, 4, 2, 3, 11, 8, true, true},      {1, 2, 1, 6, 9, 4, false, false},     {2, 2, 2, 65, 129, 24, true, true},
    {1, 2, 1, 200, 200, 40, true, false}, {2, 2, 2, 9, 9, 8, false, true},
};

// Backward reads the rounded output; ATen's attention of narrow numbers, which takes few queries and fp16, rounds the
// weights before it multiplies them.
constexpr double kIntermediates = 2;

TEST(Attention, EqualsItsReference) {
  for (const auto type : float_types())
    for (const auto& c : kCases) {
      SCOPED_TRACE(concat("S ", c.queries, " T ", c.keys, " N ", c.heads, "/", c.kv_heads, " causal ", c.causal,
                          " documents ", c.documents));
      const auto mask = mask_of(c);
      expect_equal_operators([&](const Tensors& t) { return Tensors{attention(t[0], t[1], t[2], mask)}; },
                             [&](const Tensors& t) { return Tensors{attention_reference(t[0], t[1], t[2], mask)}; },
                             inputs_of(c), type, c.keys + c.size, kIntermediates);
    }
}

TEST(Attention, ReadsHeadsInsideAFusedProjectionAndReturnsThatLayout) {
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

TEST(Attention, LooksAtNoLaterPosition) {
  const auto q = normal({1, 2, 40, 8}, 1), k = normal({1, 2, 40, 8}, 2), v = normal({1, 2, 40, 8}, 3);
  auto later = v.clone();
  later.slice(2, 20).fill_(1e6);
  EXPECT_TRUE(at::equal(attention(q, k, v, {}).slice(2, 0, 20), attention(q, k, later, {}).slice(2, 0, 20)));
}

TEST(Attention, OfPackedDocumentsEqualsEachAlone) {
  const auto q = normal({1, 2, 12, 8}, 1), k = normal({1, 2, 12, 8}, 2), v = normal({1, 2, 12, 8}, 3);
  AttentionMask mask;
  mask.documents = at::tensor({0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2}, at::kLong).unsqueeze(0);
  const auto packed = attention(q, k, v, mask);
  for (const auto& [from, to] : {std::pair{0, 5}, std::pair{5, 9}, std::pair{9, 12}})
    expect_close(packed.slice(2, from, to),
                 attention(q.slice(2, from, to), k.slice(2, from, to), v.slice(2, from, to), {}), at::kDouble, 12,
                 "document");
}

TEST(Attention, UsesTheScaleItIsGiven) {
  const auto in = inputs_of({1, 2, 2, 9, 9, 4, true, false});
  AttentionMask mask;
  mask.scale = 0.125;
  expect_close(attention(in[0], in[1], in[2], mask), attention(in[0] * 0.25, in[1], in[2], {}), at::kDouble, 9,
               "scaled");
}

TEST(Attention, RefusesShapesThatDoNotFit) {
  const auto q = normal({1, 4, 5, 8}, 1);
  EXPECT_THROW(attention(q, normal({1, 3, 5, 8}, 1), normal({1, 3, 5, 8}, 1), {}), Error);
  EXPECT_THROW(attention(q, normal({1, 4, 3, 8}, 1), normal({1, 4, 3, 8}, 1), {}), Error);
  EXPECT_THROW(attention(q, normal({1, 4, 5, 6}, 1), normal({1, 4, 5, 6}, 1), {}), Error);
  AttentionMask mask;
  mask.documents = at::zeros({1, 4}, at::kLong);
  EXPECT_THROW(attention(q, q, q, mask), Error);
}

}  // namespace
}  // namespace colossal::ops::attention_test
