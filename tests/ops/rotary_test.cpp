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
      for (const int64_t rotated : {head, head / 3 / 2 * 2}) {
        if (rotated == 0) continue;
        const RotaryTable table(rotated, 10000);
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
}

TEST(Rotary, CopiesUnrotatedFeatures) {
  const auto x = normal({2, 3, 4, 22}, 1), positions = positions_of(2, 3);
  const auto y = rotary(x, positions, RotaryTable(6, 10000));
  EXPECT_TRUE(at::equal(y.slice(3, 6), x.slice(3, 6)));
  expect_close(y.slice(3, 0, 6), rotary_reference(x.slice(3, 0, 6), positions, RotaryTable(6, 10000)), at::kDouble,
               kSteps, "turned");
}

TEST(Rotary, RotatesPairsByPositionTimesFrequency) {
  const RotaryTable table(4, 100);  // frequencies 1 and 1/10
  const auto x = at::tensor({1.0, 0.0, 0.0, 2.0}, at::kDouble).view({1, 1, 1, 4});
  const auto y = rotary(x, at::tensor({int64_t{3}}, at::kLong).view({1, 1}), table).flatten();
  const auto expected = at::tensor({std::cos(3.0), -2 * std::sin(0.3), std::sin(3.0), 2 * std::cos(0.3)}, at::kDouble);
  expect_close(y, expected, at::kDouble, kSteps, "turned");
}

TEST(Rotary, RotatesRunsOfFeaturesByTheirAxes) {
  const std::vector<RotaryTable> axes{RotaryTable(2, 10000), RotaryTable(6, 10000)};
  const auto x = normal({2, 5, 3, 8}, 1);
  const auto positions = at::stack({positions_of(2, 5), positions_of(2, 5).flip(1)}, 2);
  expect_equal_operators([&](const Tensors& t) { return Tensors{rotary(t[0], positions, axes)}; },
                         [&](const Tensors& t) {
                           const auto a = rotary_reference(t[0].slice(3, 0, 2), positions.select(2, 0), axes[0]),
                                      b = rotary_reference(t[0].slice(3, 2, 8), positions.select(2, 1), axes[1]);
                           return Tensors{at::cat({a, b}, 3)};
                         },
                         {x}, at::kDouble, kSteps);
  EXPECT_THROW(rotary(x, positions.select(2, 0).unsqueeze(2), axes), Error);    // one axis of positions
  EXPECT_THROW(rotary(x, positions, {axes[0], RotaryTable(4, 10000)}), Error);  // six of eight features
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
  const RotaryScaling scaling{.kind = RotaryScaling::Kind::Llama3, .factor = 8, .original_positions = 8192};
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

// Frequencies and factor that transformers 5.23 computes for these parameters (ROPE_INIT_FUNCTIONS, fp32).
TEST(RotaryTable, ScalesFrequenciesAsTransformersDoes) {
  using Kind = RotaryScaling::Kind;
  struct Golden {
    const char* name;
    RotaryScaling scaling;
    int64_t length;
    double factor;
    std::vector<double> frequencies;
  };
  const std::vector<double> shorts{1, 1, 1.1, 1.2, 1.3, 1.5, 1.75, 2}, longs{1, 1.5, 2, 3, 4, 6, 8, 9};
  const RotaryScaling longrope{
      .kind = Kind::LongRope, .factor = 4, .original_positions = 64, .short_factor = shorts, .long_factor = longs};
  const RotaryScaling dynamic{.kind = Kind::Dynamic, .factor = 2.5, .original_positions = 64};
  const std::vector<Golden> goldens{
      {"linear",
       {.kind = Kind::Linear, .factor = 3},
       0,
       1,
       {0.333333343, 0.105409257, 0.0333333351, 0.0105409259, 0.00333333318, 0.00105409266, 0.000333333359,
        0.000105409265}},
      {"dynamic, longer",
       dynamic,
       100,
       1,
       {1, 0.278947681, 0.0778118074, 0.0217054226, 0.00605467707, 0.00168893812, 0.000471125386, 0.000131419336}},
      {"dynamic, as long",
       dynamic,
       64,
       1,
       {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786}},
      {"yarn",
       {.kind = Kind::Yarn, .factor = 4, .original_positions = 64},
       0,
       1.138629436111989,
       {1, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05}},
      {"yarn with everything",
       {.kind = Kind::Yarn,
        .factor = 4,
        .original_positions = 64,
        .mscale = 1,
        .mscale_all_dim = 0.5,
        .beta_fast = 8,
        .beta_slow = 0.5,
        .truncate = false},
       0,
       1.0648216253695715,
       {1, 0.238408461, 0.0442483015, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05}},
      {"llama3",
       {.kind = Kind::Llama3, .factor = 8, .original_positions = 64},
       0,
       1,
       {1, 0.244384587, 0.0130422562, 0.00395284733, 0.00124999997, 0.000395284733, 0.000125000006, 3.95284733e-05}},
      {"longrope, as long",
       longrope,
       64,
       1.1547005383792517,
       {1, 0.316227764, 0.0909090936, 0.0263523124, 0.0076923077, 0.00210818532, 0.000571428565, 0.000158113893}},
      {"longrope, longer",
       longrope,
       65,
       1.1547005383792517,
       {1, 0.210818499, 0.0500000007, 0.010540925, 0.00249999994, 0.00052704633, 0.000125000006, 3.51364179e-05}}};
  for (const Golden& g : goldens) {
    const RotaryTable table(16, 10000, g.scaling);
    EXPECT_DOUBLE_EQ(table.attention_factor(), g.factor) << g.name;
    const at::Tensor got = table.frequencies(at::kCPU, g.length);
    for (size_t i = 0; i < g.frequencies.size(); ++i)  // transformers' values are products and powers in fp32
      EXPECT_NEAR(got[i].item<double>(), g.frequencies[i], 16 * 0x1p-23 * g.frequencies[i]) << g.name << ", " << i;
  }
}

TEST(RotaryTable, UsesTheGivenAttentionFactor) {
  const RotaryScaling scaling{
      .kind = RotaryScaling::Kind::Yarn, .factor = 4, .original_positions = 64, .attention_factor = 0.75};
  const RotaryTable table(8, 10000, scaling);
  const auto x = normal({1, 2, 3, 8}, 1), zero = at::zeros({1, 2}, at::kLong);
  expect_close(rotary(x, zero, table), 0.75 * x, at::kDouble, kSteps, "not turned, but scaled");
  expect_equal_operators([&](const Tensors& t) { return Tensors{rotary(t[0], positions_of(1, 2), table)}; },
                         [&](const Tensors& t) { return Tensors{rotary_reference(t[0], positions_of(1, 2), table)}; },
                         {x}, at::kFloat, kSteps);
}

// All tokens of a call are rotated by the frequencies for its length; decoding uses the frequencies for the tokens so
// far.
TEST(Rotary, UsesFrequenciesForTheLengthOfTheCall) {
  for (const auto kind : {RotaryScaling::Kind::Dynamic, RotaryScaling::Kind::LongRope}) {
    const RotaryTable table(
        6, 10000,
        {.kind = kind, .factor = 3, .original_positions = 8, .short_factor = {1, 1.5, 2}, .long_factor = {1, 3, 7}});
    for (const int64_t length : {8, 9, 30, 11, 5}) {  // lengths go up and down again
      const auto x = normal({1, length, 2, 6}, 1), positions = at::arange(length, at::kLong).unsqueeze(0);
      const auto angle = positions.to(at::kDouble).unsqueeze(-1) * table.frequencies(at::kCPU, length);
      const auto c = angle.cos().unsqueeze(2) * table.attention_factor(),
                 s = angle.sin().unsqueeze(2) * table.attention_factor();
      const auto halves = x.chunk(2, -1);
      const auto want = at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1);
      expect_close(rotary(x, positions, table), want, at::kDouble, kSteps, concat("length ", length));
      const auto last = [&](const at::Tensor& t) { return t.slice(1, length - 1); };
      expect_close(rotary(last(x), last(positions), table), last(want), at::kDouble, kSteps, "the last token alone");
      expect_close(rotary(x.slice(1, 0, 2), positions.slice(1, 0, 2), table, length), want.slice(1, 0, 2), at::kDouble,
                   kSteps, "a part that is told the length");
      expect_close(rotary_reference(x.slice(1, 0, 2), positions.slice(1, 0, 2), table, length), want.slice(1, 0, 2),
                   at::kDouble, kSteps, "the same of the reference");
    }
  }
}

TEST(RotaryTable, GrowsWithoutChangingReturnedTables) {
  const RotaryTable table(8, 10000);
  const auto early = table.turns(3, 10, at::kDouble).cos_sin;
  const auto copy = early.clone();
  const auto late = table.turns(0, 1000, at::kDouble).cos_sin;
  EXPECT_GE(late.size(0), 1000);
  EXPECT_TRUE(at::equal(early, copy));
  EXPECT_TRUE(at::equal(late.slice(0, 0, early.size(0)), early));
}

TEST(Rotary, RefusesMismatchedInputs) {
  EXPECT_THROW(RotaryTable(7, 10000), Error);
  EXPECT_THROW(RotaryTable(8, 0), Error);
  const auto refuses = [](const RotaryScaling& scaling) { EXPECT_THROW(RotaryTable(8, 10000, scaling), Error); };
  using Kind = RotaryScaling::Kind;
  refuses({.kind = Kind::Llama3, .factor = 8, .original_positions = 8192, .low_freq_factor = 4});
  refuses({.kind = Kind::Linear, .factor = 0});
  refuses({.kind = Kind::Dynamic, .factor = 2});
  refuses({.kind = Kind::Yarn, .factor = 2, .original_positions = 64, .beta_slow = 0});
  refuses({.kind = Kind::LongRope, .factor = 2, .original_positions = 64, .short_factor = {1, 1, 1, 1}});
  EXPECT_THROW(RotaryTable(2, 10000, {.kind = Kind::Dynamic, .factor = 2, .original_positions = 8}), Error);
  const RotaryTable table(8, 10000);
  EXPECT_THROW(rotary(normal({1, 2, 3, 6}, 1), positions_of(1, 2), table), Error);
  EXPECT_THROW(rotary(normal({1, 2, 3, 8}, 1), positions_of(1, 3), table), Error);
  EXPECT_THROW(rotary(normal({1, 2, 3, 8}, 1), positions_of(1, 2) - 1, table), Error);
}

}  // namespace
}  // namespace colossal::ops::rotary_test
