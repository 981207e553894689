#include "colossal/ops/rotary.h"

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops::rotary_test {
namespace {

constexpr int64_t kSteps = 4;  // roundings of an element: two products, a sum, the table's entry

at::Tensor positions_of(int64_t batch, int64_t length) {
  return (at::arange(length, at::kLong).unsqueeze(0) * 3 + at::arange(batch, at::kLong).unsqueeze(1) * 17).contiguous();
}

TEST(Rotary, EqualsItsReference) {
  for (const auto type : float_types())
    for (const int64_t head : {2, 6, 64, 70}) {
      const RotaryTable table(head, 10000);
      const auto q = normal({2, 5, 4, head}, 1), k = normal({2, 5, 2, head}, 2);
      const auto positions = positions_of(2, 5);
      expect_equal_operators(
          [&](const Tensors& t) {
            auto [a, b] = rotary(t[0], t[1], positions, table);
            return Tensors{a, b};
          },
          [&](const Tensors& t) {
            return Tensors{rotary_reference(t[0], positions, table), rotary_reference(t[1], positions, table)};
          },
          {q, k}, type, kSteps);
    }
}

TEST(Rotary, TurnsPairsByPositionTimesFrequency) {
  const RotaryTable table(4, 100);  // frequencies 1 and 1/10
  const auto x = at::tensor({1.0, 0.0, 0.0, 2.0}, at::kDouble).view({1, 1, 1, 4});
  const auto y = rotary(x, at::tensor({int64_t{3}}, at::kLong).view({1, 1}), table).flatten();
  const auto expected = at::tensor({std::cos(3.0), -2 * std::sin(0.3), std::sin(3.0), 2 * std::cos(0.3)}, at::kDouble);
  expect_close(y, expected, at::kDouble, kSteps, "turned");
}

TEST(Rotary, ReadsHeadsInsideAFusedProjection) {
  const RotaryTable table(8, 10000);
  const auto fused = normal({2, 3, 5 * 8}, 1), positions = positions_of(2, 3);
  const auto q = fused.slice(2, 0, 24).view({2, 3, 3, 8}), k = fused.slice(2, 24, 40).view({2, 3, 2, 8});
  expect_close(rotary(k, positions, table), rotary_reference(k, positions, table), at::kDouble, kSteps, "k");
  const auto moved = q.transpose(1, 2).contiguous().transpose(1, 2);
  EXPECT_TRUE(at::equal(rotary(moved, positions, table), rotary(q, positions, table)));
}

TEST(RotaryTable, ScalesFrequenciesAsLlama3Does) {
  const RotaryScaling scaling{8, 1, 4, 8192};
  const RotaryTable plain(128, 500000), scaled(128, 500000, scaling);
  const auto *f = plain.frequencies().data_ptr<double>(), *g = scaled.frequencies().data_ptr<double>();
  int kept = 0, stretched = 0, blended = 0;
  for (int i = 0; i < 64; ++i) {
    const double wavelength = 2 * M_PI / f[i];
    if (wavelength < 8192 / 4.0) {
      ++kept;
      EXPECT_DOUBLE_EQ(g[i], f[i]);
    } else if (wavelength > 8192) {
      ++stretched;
      EXPECT_DOUBLE_EQ(g[i], f[i] / 8);
    } else {
      const double smooth = (8192 / wavelength - 1) / (4 - 1);
      ++blended;
      EXPECT_NEAR(g[i], (1 - smooth) * f[i] / 8 + smooth * f[i], 16 * 0x1p-52 * f[i]);
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
  EXPECT_GT(blended, 0);
}

TEST(RotaryTable, GrowsWithoutChangingWhatItGaveOut) {
  const RotaryTable table(8, 10000);
  const auto early = table.cos_sin(10, at::kDouble);
  const auto copy = early.clone();
  const auto late = table.cos_sin(1000, at::kDouble);
  EXPECT_GE(late.size(0), 1000);
  EXPECT_TRUE(at::equal(early, copy));
  EXPECT_TRUE(at::equal(late.slice(0, 0, early.size(0)), early));
}

TEST(Rotary, RefusesWhatDoesNotFit) {
  EXPECT_THROW(RotaryTable(7, 10000), Error);
  EXPECT_THROW(RotaryTable(8, 0), Error);
  EXPECT_THROW(RotaryTable(8, 10000, RotaryScaling{8, 4, 4, 8192}), Error);
  const RotaryTable table(8, 10000);
  EXPECT_THROW(rotary(normal({1, 2, 3, 6}, 1), positions_of(1, 2), table), Error);
  EXPECT_THROW(rotary(normal({1, 2, 3, 8}, 1), positions_of(1, 3), table), Error);
  EXPECT_THROW(rotary(normal({1, 2, 3, 8}, 1), positions_of(1, 2) - 1, table), Error);
}

}  // namespace
}  // namespace colossal::ops::rotary_test
