#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/ops/attention/biased.h"
#include "colossal/tensor/flops.h"
#include "ops/compare.h"
#include "support/thrown_message.h"

namespace colossal::ops::biased_attention_test {
namespace {

using testing::HasSubstr;

/// Sizes of a case: 2 groups of `rows` rows.
struct Sizes {
  int64_t rows, heads, queries, keys, width;
};

Tensors inputs_of(const Sizes& s) {
  return {normal({2, s.rows, s.heads, s.queries, s.width}, 1), normal({2, s.rows, s.heads, s.keys, s.width}, 2),
          normal({2, s.rows, s.heads, s.keys, s.width}, 3), normal({2, s.heads, s.queries, s.keys}, 4)};
}

void expect_reference(const Sizes& s, at::ScalarType type, AttentionBias rules) {
  const auto run = [&](auto attention) {
    return [=](const Tensors& t) {
      AttentionBias own = rules;
      own.bias = t[3];
      return Tensors{attention(t[0], t[1], t[2], own)};
    };
  };
  expect_equal_operators(run(biased_attention), run(biased_attention_reference), inputs_of(s), type,
                         2 * s.rows * s.keys * s.width);
}

TEST(BiasedAttention, EqualsItsReferenceInEachType) {
  // Narrow dtypes round the result, from which backward takes the sums of gradients.
  for (const auto type : {at::kDouble, at::kFloat})
    for (const Sizes& s : {Sizes{3, 2, 9, 9, 5}, {2, 1, 33, 70, 8}, {1, 3, 3, 4, 2}}) expect_reference(s, type, {});
}

TEST(BiasedAttention, RoundsNarrowTypesOnce) {
  const Sizes s{2, 2, 12, 12, 8};
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    Tensors in = inputs_of(s);
    for (at::Tensor& t : in) t = t.to(type);
    const at::Tensor got = biased_attention(in[0], in[1], in[2], {.bias = in[3]});
    for (at::Tensor& t : in) t = t.to(at::kDouble);
    expect_close(got, biased_attention_reference(in[0], in[1], in[2], {.bias = in[3]}), type, 100, "result");
  }
}

TEST(BiasedAttention, LetsMaskedKeysTakeNoPart) {
  const Sizes s{3, 2, 10, 12, 4};
  at::Tensor keys = at::ones({2, 3, 12}, at::kBool);
  keys[0][1].narrow(0, 4, 8).fill_(false);
  keys[1][2].fill_(false);  // a row without keys
  for (const Sizes& sizes : {s, Sizes{3, 2, 2, 12, 4}}) {
    expect_reference(sizes, at::kDouble, {.keys = keys});
    const Tensors in = inputs_of(sizes);
    const at::Tensor out = biased_attention(in[0], in[1], in[2], {.bias = in[3], .keys = keys});
    EXPECT_EQ(out[1][2].abs().max().item<double>(), 0);
    in[1][0][1].narrow(1, 4, 8).fill_(1e3);
    EXPECT_TRUE(at::equal(out, biased_attention(in[0], in[1], in[2], {.bias = in[3], .keys = keys})));
  }
}

TEST(BiasedAttention, ObeysCausalRulesAndDocuments) {
  const at::Tensor keys = at::arange(2 * 3 * 12, at::kLong).view({2, 3, 12}).remainder(5).floor_divide(2);
  const AttentionBias rules{
      .causal = true, .query_documents = keys.narrow(2, 2, 10), .key_documents = keys, .scale = 0.7};
  expect_reference({3, 2, 10, 12, 4}, at::kDouble, rules);
}

TEST(BiasedAttention, GivesTheResultTheOrderOfItsQueries) {
  const Tensors in = inputs_of({3, 2, 9, 9, 4});
  const at::Tensor turned = in[0].permute({0, 3, 1, 2, 4}).contiguous().permute({0, 2, 3, 1, 4});
  const at::Tensor out = biased_attention(turned, in[1], in[2], {.bias = in[3]});
  EXPECT_TRUE(out.permute({0, 3, 1, 2, 4}).is_contiguous());
  EXPECT_TRUE(at::equal(out, biased_attention(in[0], in[1], in[2], {.bias = in[3]})));
}

TEST(BiasedAttention, HasTheGradientOfFiniteDifferences) {
  Tensors in = inputs_of({2, 2, 8, 8, 3});
  for (at::Tensor& t : in) t.requires_grad_();
  const auto value = [&] { return biased_attention(in[0], in[1], in[2], {.bias = in[3]}).sin().sum(); };
  value().backward();
  const at::NoGradGuard no_grad;
  for (at::Tensor& t : in) {
    at::Tensor element = t.view(-1).narrow(0, 17, 1);
    const double step = 1e-6;
    element.add_(step);
    const double up = value().item<double>();
    element.sub_(2 * step);
    const double down = value().item<double>();
    element.add_(step);
    EXPECT_NEAR(t.grad().view(-1)[17].item<double>(), (up - down) / (2 * step), 1e-8);
  }
}

TEST(BiasedAttention, AnnouncesVisiblePairs) {
  const Tensors in = inputs_of({3, 2, 4, 5, 6});
  const tensor::FlopCount all;
  biased_attention(in[0], in[1], in[2], {.causal = true});
  EXPECT_EQ(all.total(), 4.0 * 2 * 3 * 2 * 6 * (2 + 3 + 4 + 5));
}

TEST(BiasedAttention, HasSizesOnMeta) {
  Tensors in = inputs_of({3, 2, 9, 9, 4});
  for (at::Tensor& t : in) t = t.to(at::kMeta).requires_grad_();
  const at::Tensor out = biased_attention(in[0], in[1], in[2], {.bias = in[3]});
  out.sum().backward();
  EXPECT_EQ(out.sizes(), in[0].sizes());
  for (const at::Tensor& t : in) EXPECT_EQ(t.grad().sizes(), t.sizes());
}

TEST(BiasedAttention, RefusesTensorsThatDoNotFit) {
  const Tensors in = inputs_of({3, 2, 4, 5, 6});
  const auto refusal = [&](const AttentionBias& rules) {
    return test::thrown_message([&] { biased_attention(in[0], in[1], in[2], rules); });
  };
  EXPECT_THAT(refusal({.bias = in[3][0]}), HasSubstr("bias must be [2, 2, 4, 5]: got [2, 4, 5]"));
  EXPECT_THAT(refusal({.keys = at::ones({2, 3, 5})}), HasSubstr("the mask of keys must be bool [2, 3, 5]"));
  EXPECT_THAT(refusal({.query_documents = at::ones({2, 3, 4})}), HasSubstr("document ids of queries and keys must be"));
  EXPECT_THAT(test::thrown_message([&] { biased_attention(in[1], in[0], in[0], {.causal = true}); }),
              HasSubstr("at least as many keys as queries: got 4 and 5"));
  EXPECT_THAT(test::thrown_message([&] { biased_attention(in[0], in[1], in[2].to(at::kFloat), {}); }),
              HasSubstr("q must be [G,R,N,S,D]"));
}

}  // namespace
}  // namespace colossal::ops::biased_attention_test
