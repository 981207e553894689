#include "colossal/ops/random.h"

#include <ATen/Parallel.h>

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops::random_test {
namespace {

TEST(Philox, GivesTheKnownAnswers) {
  // Known-answer file of Random123, philox4x32-10: all-zero counter and key. The upper counter words are always zero
  // here.
  EXPECT_EQ(philox(0, 0), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(Philox, GivesEqualWordsForEveryInstructionSetAndStart) {
  std::vector<uint32_t> whole(500), part(500);
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    random_words(77, 0, 500, part.data());
    if (set == InstructionSet::Portable) whole = part;
    EXPECT_EQ(part, whole) << name(set);
    for (const int64_t first : {1, 4, 250, 499}) {
      random_words(77, static_cast<uint64_t>(first), 500 - first, part.data());
      EXPECT_TRUE(std::equal(part.begin(), part.begin() + (500 - first), whole.begin() + first)) << first;
    }
  }
  for (uint64_t block = 0; block < 125; ++block)
    EXPECT_TRUE(std::equal(whole.begin() + 4 * block, whole.begin() + 4 * block + 4, philox(block, 77).begin()));
  // Counters beyond 32 bits test the carry into the second word.
  const uint64_t far = (uint64_t{1} << 34) - 6;
  random_words(77, far, 12, part.data());
  for (int i = 0; i < 12; ++i) EXPECT_EQ(part[i], philox((far + i) / 4, 77)[(far + i) % 4]);
}

TEST(FillNormal, DependsOnTheLogicalIndexOnly) {
  const std::vector<int64_t> shape{5, 7, 11};
  auto whole = at::empty(shape, at::kFloat);
  fill_normal(whole, shape, {0, 0, 0}, {0, 0, 0}, shape, 42, 0.5);
  auto part = at::full({4, 6, 9}, 9.0f);
  fill_normal(part, shape, {1, 2, 3}, {1, 0, 2}, {3, 4, 6}, 42, 0.5);
  EXPECT_TRUE(
      at::equal(part.slice(0, 1, 4).slice(1, 0, 4).slice(2, 2, 8), whole.slice(0, 1, 4).slice(1, 2, 6).slice(2, 3, 9)));
  EXPECT_EQ(part.eq(9).sum().item<int64_t>(), part.numel() - 3 * 4 * 6);  // elements outside the box did not change
}

TEST(Uniform, DependsOnTheLogicalIndexOnly) {
  const at::Tensor whole = uniform(12, 10, 5, {0}, 0, 10, at::kCPU);
  EXPECT_TRUE(at::equal(uniform(4, 3, 5, {6}, 2, 10, at::kCPU), whole.narrow(0, 6, 4).narrow(1, 2, 3)));
  const at::Tensor runs = uniform(4, 10, 5, {1, 2, 6}, 0, 10, at::kCPU);  // rows 1, 2, 7, 8
  EXPECT_TRUE(at::equal(runs, at::cat({whole.narrow(0, 1, 2), whole.narrow(0, 7, 2)})));
  for (int64_t i = 0; i < 120; ++i)
    EXPECT_EQ(whole.flatten()[i].item<float>(),
              static_cast<float>(philox(static_cast<uint64_t>(i) / 4, 5)[i % 4] >> 8) * 0x1p-23f - 1);
}

TEST(FillUniform, GivesTheSameValuesToEveryShard) {
  const std::vector<int64_t> shape{6, 1000};
  at::Tensor whole = at::empty(shape, at::kDouble), part = at::zeros({4, 130}, at::kDouble);
  fill_uniform(whole, shape, {0, 0}, {0, 0}, shape, 42, 0.5);
  fill_uniform(part, shape, {2, 301}, {1, 7}, {3, 120}, 42, 0.5);
  EXPECT_TRUE(at::equal(part.narrow(0, 1, 3).narrow(1, 7, 120), whole.narrow(0, 2, 3).narrow(1, 301, 120)));
  EXPECT_EQ(part[0].abs().max().item<double>(), 0);
  EXPECT_GE(whole.min().item<double>(), -0.5);
  EXPECT_LE(whole.max().item<double>(), 0.5);
  // The mean has the standard deviation 0.5 / sqrt(3 n), a quarter of the values that of a share: sqrt(3 / (16 n)).
  const double values = 6000;
  EXPECT_NEAR(whole.mean().item<double>(), 0, 5 * 0.5 / std::sqrt(3 * values));
  for (int quarter = 0; quarter < 4; ++quarter) {
    const double low = -0.5 + quarter * 0.25;
    const double share = (whole.ge(low) * whole.lt(low + 0.25)).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(share, 0.25, 5 * std::sqrt(3 / (16 * values)));
  }
}

TEST(FillNormal, DrawsEqualValuesForAnyThreadCountAndDtype) {
  const std::vector<int64_t> shape{300, 301};
  const int threads = at::get_num_threads();
  auto serial = at::empty(shape), parallel = at::empty(shape);
  at::set_num_threads(1);
  fill_normal(serial, shape, {0, 0}, {0, 0}, shape, 7, 1);
  at::set_num_threads(3);
  fill_normal(parallel, shape, {0, 0}, {0, 0}, shape, 7, 1);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(serial, parallel));
  for (const auto type : float_types()) {
    auto local = at::empty(shape, type);
    fill_normal(local, shape, {0, 0}, {0, 0}, shape, 7, 1);
    EXPECT_TRUE(at::equal(local, serial.to(type)));
  }
}

TEST(FillNormal, HasTheMomentsOfANormalDistribution) {
  constexpr int64_t kCount = 1 << 20;
  auto x = at::empty({kCount});
  fill_normal(x, {kCount}, {0}, {0}, {kCount}, 3, 2);
  const auto z = x.to(at::kDouble) / 2;
  // Five standard errors of each moment of a standard normal variate: 1, sqrt(2), sqrt(15), sqrt(96) over sqrt(n).
  const double error = 5 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(z.mean().item<double>(), 0, error);
  EXPECT_NEAR(z.square().mean().item<double>(), 1, std::sqrt(2.0) * error);
  EXPECT_NEAR(z.pow(3).mean().item<double>(), 0, std::sqrt(15.0) * error);
  EXPECT_NEAR(z.pow(4).mean().item<double>(), 3, std::sqrt(96.0) * error);
  EXPECT_NEAR((z.slice(0, 0, kCount, 2) * z.slice(0, 1, kCount, 2)).mean().item<double>(), 0, std::sqrt(2.0) * error);
  EXPECT_GT(z.max().item<double>(), 4.5);
}

TEST(FillNormal, DiffersBetweenSeedsAndFillsScalarsAndEmptyBoxes) {
  auto a = at::empty({64}), b = at::empty({64});
  fill_normal(a, {64}, {0}, {0}, {64}, 1, 1);
  fill_normal(b, {64}, {0}, {0}, {64}, 2, 1);
  EXPECT_EQ(a.eq(b).sum().item<int64_t>(), 0);
  auto scalar = at::empty({});
  fill_normal(scalar, {}, {}, {}, {}, 1, 1);
  EXPECT_EQ(scalar.item<float>(), a[0].item<float>());
  fill_normal(a, {64}, {10}, {0}, {0}, 1, 1);
}

TEST(FillNormal, WritesStridedTensors) {
  auto whole = at::empty({6, 8}), base = at::zeros({8, 6});
  fill_normal(whole, {6, 8}, {0, 0}, {0, 0}, {6, 8}, 1, 1);
  auto view = base.t();
  fill_normal(view, {6, 8}, {0, 0}, {0, 0}, {6, 8}, 1, 1);
  EXPECT_TRUE(at::equal(base.t(), whole));
}

TEST(FillNormal, RefusesBoxesOutOfRange) {
  auto x = at::empty({4, 4});
  EXPECT_THROW(fill_normal(x, {8, 8}, {5, 0}, {0, 0}, {4, 4}, 1, 1), Error);
  EXPECT_THROW(fill_normal(x, {8, 8}, {0, 0}, {1, 0}, {4, 4}, 1, 1), Error);
  EXPECT_THROW(fill_normal(x, {8}, {0}, {0}, {4}, 1, 1), Error);
  EXPECT_THROW(fill_normal(x, {8, 8}, {-1, 0}, {0, 0}, {4, 4}, 1, 1), Error);
}

TEST(Dropout, KeepsAndScalesTheExpectedFraction) {
  const auto y = dropout(at::ones({512, 512}), 0.25, 9, 0, 0, 512);
  const double kept = y.ne(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 0.75, 5 * std::sqrt(0.25 * 0.75) / 512);
  EXPECT_TRUE(y.ne(0).logical_and(y.ne(1.0f / 0.75f)).sum().item<int64_t>() == 0);
}

TEST(Dropout, EqualsTheSerialMaskOnShards) {
  const auto x = normal({30, 26}, 1);
  const auto whole = dropout(x, 0.4, 11, 100, 0, 26);
  for (int64_t row : {0, 13})
    for (int64_t col : {0, 5, 13})
      EXPECT_TRUE(at::equal(dropout(x.slice(0, row, row + 7).slice(1, col, col + 9), 0.4, 11, 100 + row, col, 26),
                            whole.slice(0, row, row + 7).slice(1, col, col + 9)));
  EXPECT_TRUE(at::equal(dropout(x.view({5, 6, 26}), 0.4, 11, 100, 0, 26).view({30, 26}), whole));
  // Tokens 2 and 3 of each of 5 rows of 6 tokens.
  const auto tokens = x.view({5, 6, 26}).narrow(1, 2, 2);
  EXPECT_TRUE(at::equal(dropout(tokens, 0.4, 11, {102, 2, 6}, 0, 26), whole.view({5, 6, 26}).narrow(1, 2, 2)));
  EXPECT_TRUE(
      at::equal(dropout_mask_reference(10, 26, 0.4, 11, {102, 2, 6}, 0, 26, at::kCPU).view({5, 2, 26}),
                dropout_mask_reference(30, 26, 0.4, 11, 100, 0, 26, at::kCPU).view({5, 6, 26}).narrow(1, 2, 2)));
}

TEST(Dropout, EqualsTheMaskOfAtenOperators) {
  for (const uint64_t seed : {uint64_t{1}, uint64_t{0xFEDCBA9876543210}}) {
    const auto kept = dropout(at::ones({33, 17}), 0.5, seed, 5, 3, 40).ne(0);
    EXPECT_TRUE(at::equal(kept, dropout_mask_reference(33, 17, 0.5, seed, 5, 3, 40, at::kCPU)));
  }
}

TEST(Dropout, UsesTheSameMaskInBackward) {
  for (const auto type : float_types()) {
    const auto x = at::ones({9, 10}, type).requires_grad_(true);
    const auto y = dropout(x, 0.5, 3, 0, 0, 10);
    y.sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), y.detach()));
  }
}

TEST(Dropout, ReturnsTheInputForZeroProbability) {
  const auto x = normal({3, 4}, 1);
  EXPECT_TRUE(dropout(x, 0, 1, 0, 0, 4).is_same(x));
  EXPECT_THROW(dropout(x, 1, 1, 0, 0, 4), Error);
  EXPECT_THROW(dropout(x, 0.5, 1, 0, 1, 4), Error);
  EXPECT_THROW(dropout(x, 0.5, 1, -1, 0, 4), Error);
  EXPECT_THROW(dropout(x, 0.5, 1, {0, 3, 2}, 0, 4), Error);
}

}  // namespace
}  // namespace colossal::ops::random_test
