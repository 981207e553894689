#include "colossal/nn/relative_attention.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/kv_cache.h"
#include "colossal/tensor/flops.h"
#include "support/thrown_message.h"

namespace colossal::nn::relative_attention_test {
namespace {

using testing::HasSubstr;

/// Returns the buckets of token 200 of 401 for the tokens at these distances.
std::vector<int64_t> buckets_at(const RelativeBuckets& buckets, const std::vector<int64_t>& distances) {
  const at::Tensor row = buckets.of(401, 401)[200];
  std::vector<int64_t> found;
  for (const int64_t d : distances) found.push_back(row[200 + d].item<int64_t>());
  return found;
}

// The results of T5Attention._relative_position_bucket in transformers 5.23.
TEST(RelativeBuckets, EqualTransformers) {
  const std::vector<int64_t> distances{-200, -129, -128, -127, -100, -64, -63, -16, -15, -8, -7,
                                       -1,   0,    1,    7,    8,    15,  16,  50,  127, 128};
  EXPECT_THAT(buckets_at({.both_sides = true}, distances),
              testing::ElementsAre(15, 15, 15, 15, 15, 14, 13, 10, 9, 8, 7, 1, 0, 17, 23, 24, 25, 26, 29, 31, 31));
  EXPECT_THAT(buckets_at({.both_sides = false}, distances),
              testing::ElementsAre(31, 31, 31, 31, 30, 26, 26, 16, 15, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(RelativeBuckets, ReturnLastRowsForLastQueries) {
  const RelativeBuckets buckets{.count = 8, .max_distance = 12};
  EXPECT_TRUE(at::equal(buckets.of(2, 7), buckets.of(7, 7).narrow(0, 5, 2)));
}

TEST(RelativeBuckets, RefuseCountsThatLeaveBucketsOut) {
  const auto refusal = [](const RelativeBuckets& buckets) { return test::thrown_message([&] { buckets.of(1, 1); }); };
  EXPECT_THAT(refusal({.count = 7, .both_sides = true}),
              HasSubstr("must be at least 4, and even if they cover both sides: got 7"));
  EXPECT_THAT(refusal({.count = 1}), HasSubstr("must be at least 2"));
  EXPECT_THAT(refusal({.count = 32, .max_distance = 16}),
              HasSubstr("must be greater than the number of buckets of a single distance, 16"));
}

Heads random_heads(int64_t queries, int64_t keys) {
  auto generator = at::detail::createCPUGenerator(3);
  const auto make = [&](int64_t tokens) { return at::randn({2, tokens, 3, 4}, generator, at::kDouble); };
  return {make(queries), make(keys), make(keys), {}};
}

TEST(BiasedAttention, MasksOtherDocumentsAndLaterTokens) {
  const Heads heads = random_heads(3, 5);
  const at::Tensor bias = at::arange(45, at::kDouble).view({3, 3, 5}) / 20;
  const at::Tensor keys = at::tensor({0, 0, 1, 1, 0, 0, 0, 0, 0, 0}, at::kLong).view({2, 5});
  const at::Tensor queries = at::tensor({0, 1, 2, 0, 0, 0}, at::kLong).view({2, 3});
  const at::Tensor out =
      biased_attention(heads, {.bias = bias, .causal = true, .query_documents = queries, .key_documents = keys}).tensor;
  ASSERT_EQ(out.sizes(), (std::vector<int64_t>{2, 3, 12}));
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t t = 0; t < 3; ++t)
      for (int64_t n = 0; n < 3; ++n) {
        at::Tensor sum = at::zeros({4}, at::kDouble);
        double all = 0;
        for (int64_t s = 0; s <= t + 2; ++s) {
          if (!queries[b][t].equal(keys[b][s])) continue;
          const at::Tensor score = heads.q[b][t][n].dot(heads.k[b][s][n]) + bias[n][t][s];
          sum += score.exp() * heads.v[b][s][n];
          all += score.exp().item<double>();
        }
        const at::Tensor wanted = all == 0 ? sum : sum / all;  // a document may have no keys
        EXPECT_TRUE(at::allclose(out[b][t].narrow(0, 4 * n, 4), wanted, 1e-12, 1e-12)) << b << t << n;
      }
}

TEST(BiasedAttention, AnnouncesFlopsOfUnmaskedPairs) {
  const tensor::FlopCount all;
  biased_attention(random_heads(3, 5), {});
  EXPECT_EQ(all.total(), 4.0 * 2 * 3 * 4 * 15);
  const tensor::FlopCount causal;
  biased_attention(random_heads(3, 5), {.causal = true});
  EXPECT_EQ(causal.total(), 4.0 * 2 * 3 * 4 * (3 + 4 + 5));
}

TEST(EncoderDecoderCache, KeepsSourceAndAppendsTarget) {
  EncoderDecoderCache cache(2);
  const auto ones = [](int64_t tokens) { return at::ones({2, tokens, 1, 1}); };
  ForwardContext first, next;
  first.parts.set(SourceTokens{3}), next.parts.set(SourceTokens{0});
  cache.append(0, ones(1), ones(1), first);
  cache.append(1, ones(3), ones(3), first);
  cache.advance(first, 4);
  EXPECT_THAT(cache.lengths(), testing::ElementsAre(1));
  EXPECT_THAT(cache.append(0, ones(1), ones(1), next).lengths, testing::ElementsAre(2, 2));
  EXPECT_EQ(cache.append(1, ones(0), ones(0), next).k.size(1), 3);
  cache.advance(next, 1);
  EXPECT_THAT(test::thrown_message([&] { cache.advance(next, 1); }),
              HasSubstr("the target must fit the cache: got 3 tokens"));
  EXPECT_THAT(test::thrown_message([&] { cache.advance({}, 1); }), HasSubstr("a step must set nn::SourceTokens"));
  EXPECT_THAT(test::thrown_message([&] { cache.append(0, ones(1).narrow(0, 0, 1), ones(1), next); }),
              HasSubstr("as many rows as the first, 2: got 1"));
  next.parts.set(Sequences{{1, 1}});
  EXPECT_THAT(test::thrown_message([&] { cache.append(0, ones(2), ones(2), next); }),
              HasSubstr("one sequence per row"));
}

}  // namespace
}  // namespace colossal::nn::relative_attention_test
