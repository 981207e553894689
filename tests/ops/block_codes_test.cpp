#include "colossal/ops/updates/block_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops::block_codes_test {
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

at::Tensor sample(int64_t n, Codes kind) {  // values of many magnitudes
  at::Tensor x = normal({n}, 1).to(at::kFloat) * (normal({n}, 2) * 3).exp().to(at::kFloat);
  return kind == Codes::Signed ? x : x.abs();
}

TEST(BlockCodes, HasAscendingValuesUpToOne) {
  const auto &both = code_values(Codes::Signed), &positive = code_values(Codes::Positive);
  EXPECT_EQ(both.size(), 255u);
  EXPECT_EQ(positive.size(), 256u);
  for (const auto* values : {&both, &positive}) {
    EXPECT_TRUE(std::is_sorted(values->begin(), values->end(), std::less_equal<>()));
    EXPECT_EQ(values->back(), 1);
    EXPECT_TRUE(std::binary_search(values->begin(), values->end(), 0.0f));
  }
  for (size_t i = 0; i < both.size(); ++i) EXPECT_EQ(both[i], -both[both.size() - 1 - i]);
  EXPECT_NEAR(both[128], 0.55e-6, 1e-12);  // the only value of the lowest decade
}

TEST(BlockCodes, RoundsToTheNearestValue) {
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

/// Returns `values` in blocks that each begin with a 1. The scale of every block is then 1, and the values themselves
/// are encoded.
at::Tensor in_blocks_of_scale_one(const std::vector<float>& values) {
  std::vector<float> all;
  for (const float value : values) {
    if (all.size() % kCodeBlock == 0) all.push_back(1);
    all.push_back(value);
  }
  return at::tensor(all, at::kFloat);
}

TEST(BlockCodes, EncodesLikeTheReference) {
  for (const Codes kind : {Codes::Signed, Codes::Positive}) {
    std::vector<float> edges{0.0f, -0.0f, 1e-40f, 0x1p-149f};
    const auto add = [&](float x) {  // adds x and its neighbours
      float below = x, above = x;
      edges.push_back(x);
      for (int i = 0; i < 2; ++i) {
        edges.push_back(below = std::nextafter(below, 0.0f));
        if (above < 1) edges.push_back(above = std::nextafter(above, 1.0f));
      }
    };
    const auto& meaning = code_values(kind);
    for (size_t i = 0; i + 1 < meaning.size(); ++i)
      if (meaning[i] >= 0) add((meaning[i] + meaning[i + 1]) / 2);
    // Values at which the kernels' look-up entry changes.
    for (uint32_t upper_bits = 0x3300; upper_bits <= 0x3F80; ++upper_bits) add(std::bit_cast<float>(upper_bits << 16));
    if (kind == Codes::Signed)
      for (size_t i = 0, n = edges.size(); i < n; ++i) edges.push_back(-edges[i]);
    for (const auto set : runnable_instruction_sets()) {
      const InstructionSetScope scope(set);
      for (const at::Tensor& x :
           {in_blocks_of_scale_one(edges), sample(70001, kind), sample(3, kind), sample(0, kind)}) {
        const Encoded fast(x, kind);
        Encoded plain(x, kind);
        encode_blocks_reference(x, kind, plain.codes.fill_(77), plain.scales.fill_(77));
        EXPECT_TRUE(at::equal(fast.codes, plain.codes)) << name(set) << ", " << x.numel() << " values";
        EXPECT_TRUE(at::equal(fast.scales, plain.scales)) << name(set) << ", " << x.numel() << " values";
        at::Tensor want = at::empty_like(x);
        decode_blocks_reference(plain.codes, plain.scales, kind, want);
        EXPECT_TRUE(at::equal(fast.decoded(kind), want)) << name(set) << ", " << x.numel() << " values";
      }
    }
  }
}

TEST(BlockCodes, EncodesDecodedValuesUnchanged) {
  for (const Codes kind : {Codes::Signed, Codes::Positive})
    for (const int64_t n : {0, 1, 255, 256, 257, 70001}) {
      const Encoded once(sample(n, kind), kind), twice(once.decoded(kind), kind);
      EXPECT_TRUE(at::equal(once.codes, twice.codes));
      EXPECT_TRUE(at::equal(once.scales, twice.scales));
    }
}

TEST(BlockCodes, KeepsBlocksOfZeros) {
  const at::Tensor zeros = at::zeros({300});
  EXPECT_TRUE(at::equal(Encoded(zeros, Codes::Signed).decoded(Codes::Signed), zeros));
}

TEST(BlockCodes, RefusesMismatchedTensors) {
  const at::Tensor codes = at::zeros({8}, at::kByte), scales = at::zeros({1});
  EXPECT_THROW(encode_blocks(at::zeros({9}), Codes::Signed, codes, scales), Error);
  EXPECT_THROW(encode_blocks(at::zeros({8}, at::kDouble), Codes::Signed, codes, scales), Error);
  EXPECT_THROW(decode_blocks(codes, at::zeros({2}), Codes::Signed, at::zeros({8})), Error);
}

}  // namespace
}  // namespace colossal::ops::block_codes_test
