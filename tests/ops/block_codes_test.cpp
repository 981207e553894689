#include "colossal/ops/block_codes.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops {
namespace {

struct Encoded {
  at::Tensor codes, scales;
  explicit Encoded(const at::Tensor& values, Codes kind)
      : codes(at::zeros({values.numel()}, at::kByte)), scales(at::zeros({(values.numel() + 255) / 256})) {
    encode_blocks(values, kind, codes, scales);
  }
  at::Tensor decoded(Codes kind) const {
    at::Tensor values = at::empty({codes.numel()});
    decode_blocks(codes, scales, kind, values);
    return values;
  }
};

at::Tensor sample(int64_t n, Codes kind) {  // many magnitudes
  at::Tensor x = normal({n}, 1).to(at::kFloat) * (normal({n}, 2) * 3).exp().to(at::kFloat);
  return kind == Codes::Signed ? x : x.abs();
}

TEST(BlockCodes, ValuesRiseToOneThroughZero) {
  const auto &both = code_values(Codes::Signed), &positive = code_values(Codes::Positive);
  EXPECT_EQ(both.size(), 255u);
  EXPECT_EQ(positive.size(), 256u);
  for (const auto* values : {&both, &positive}) {
    EXPECT_TRUE(std::is_sorted(values->begin(), values->end(), std::less_equal<>()));
    EXPECT_EQ(values->back(), 1);
    EXPECT_TRUE(std::binary_search(values->begin(), values->end(), 0.0f));
  }
  for (size_t i = 0; i < both.size(); ++i) EXPECT_EQ(both[i], -both[both.size() - 1 - i]);
  EXPECT_NEAR(both[128], 0.55e-6, 1e-12);  // the one value of the lowest decade
}

TEST(BlockCodes, TakeTheNearestValue) {
  for (const Codes kind : {Codes::Signed, Codes::Positive}) {
    const auto& values = code_values(kind);
    const at::Tensor x = sample(5000, kind);
    const Encoded encoded(x, kind);
    const at::Tensor got = encoded.decoded(kind);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const float scale = encoded.scales[i / 256].item<float>(), want = x[i].item<float>();
      float best = INFINITY;
      for (const float value : values) best = std::min(best, std::fabs(value * scale - want));
      ASSERT_LE(std::fabs(got[i].item<float>() - want), best + 1e-6f * std::fabs(want)) << want / scale;
    }
  }
}

TEST(BlockCodes, EncodingTheDecodedChangesNothing) {
  for (const Codes kind : {Codes::Signed, Codes::Positive})
    for (const int64_t n : {0, 1, 255, 256, 257, 70001}) {
      const Encoded once(sample(n, kind), kind), twice(once.decoded(kind), kind);
      EXPECT_TRUE(at::equal(once.codes, twice.codes));
      EXPECT_TRUE(at::equal(once.scales, twice.scales));
    }
}

TEST(BlockCodes, ABlockOfZerosStaysZero) {
  const at::Tensor zeros = at::zeros({300});
  EXPECT_TRUE(at::equal(Encoded(zeros, Codes::Signed).decoded(Codes::Signed), zeros));
}

TEST(BlockCodes, RefusesWhatDoesNotFit) {
  const at::Tensor codes = at::zeros({8}, at::kByte), scales = at::zeros({1});
  EXPECT_THROW(encode_blocks(at::zeros({9}), Codes::Signed, codes, scales), Error);
  EXPECT_THROW(encode_blocks(at::zeros({8}, at::kDouble), Codes::Signed, codes, scales), Error);
  EXPECT_THROW(decode_blocks(codes, at::zeros({2}), Codes::Signed, at::zeros({8})), Error);
}

}  // namespace
}  // namespace colossal::ops
