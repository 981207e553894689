#include "colossal/ops/updates/update.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/ops/random.h"
#include "ops/compare.h"

namespace colossal::ops::update_test {
namespace {

struct Types {
  at::ScalarType values, gradients;
  std::optional<at::ScalarType> copy{};
};
const std::vector<Types>& all_types() {
  static const std::vector<Types> types{
      {at::kDouble, at::kDouble},
      {at::kFloat, at::kFloat},
      {at::kFloat, at::kFloat, at::kBFloat16},
      {at::kFloat, at::kBFloat16},
      {at::kFloat, at::kHalf},
      {at::kFloat, at::kBFloat16, at::kBFloat16},
      {at::kFloat, at::kHalf, at::kHalf},
      {at::kFloat, at::kFloat, at::kHalf},
      {at::kBFloat16, at::kBFloat16},
  };
  return types;
}

struct Buffers {
  FlatUpdate u;
  at::Tensor m, v;
  Buffers(int64_t n, const Types& types)
      : u{normal({n}, 1).to(types.values), normal({n}, 2).to(types.gradients), {}, 0.5},
        m(normal({n}, 3).mul(0.1).to(types.values)),
        v(normal({n}, 4).square().to(types.values)) {
    if (types.copy) u.copy = at::empty({n}, *types.copy);
  }
};

AdamStep adam_of(int64_t step) { return {.learning_rate = 0.01, .weight_decay = 0.1, .penalty = 0.02, .step = step}; }
constexpr SgdStep kSgd{.learning_rate = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = false, .intake = 0.7};
constexpr LionStep kLion{.learning_rate = 0.01, .weight_decay = 0.1};

struct Rule {
  const char* name;
  void (*fast)(Buffers&, int64_t step);
  void (*reference)(Buffers&, int64_t step);
  bool writes_copy = true;  ///< the rule supports `copy` and stochastic rounding
};
const Rule kRules[] = {
    {"sgd", [](Buffers& b, int64_t) { sgd_(b.u, {}, {.learning_rate = 0.01, .weight_decay = 0.1}); },
     [](Buffers& b, int64_t) { sgd_reference_(b.u, {}, {.learning_rate = 0.01, .weight_decay = 0.1}); }},
    {"momentum", [](Buffers& b, int64_t) { sgd_(b.u, b.m, kSgd); },
     [](Buffers& b, int64_t) { sgd_reference_(b.u, b.m, kSgd); }},
    {"nesterov",
     [](Buffers& b, int64_t) {
       SgdStep step = kSgd;
       step.nesterov = true;
       sgd_(b.u, b.m, step);
     },
     [](Buffers& b, int64_t) {
       SgdStep step = kSgd;
       step.nesterov = true;
       sgd_reference_(b.u, b.m, step);
     }},
    {"adam", [](Buffers& b, int64_t step) { adam_(b.u, b.m, b.v, adam_of(step)); },
     [](Buffers& b, int64_t step) { adam_reference_(b.u, b.m, b.v, adam_of(step)); }},
    {"direction",
     [](Buffers& b, int64_t step) {
       adam_direction_({b.u.values, b.u.gradients, {}, 0.5}, b.u.values, b.m, b.v, adam_of(step));
     },
     [](Buffers& b, int64_t step) {
       adam_direction_reference_({b.u.values, b.u.gradients, {}, 0.5}, b.u.values, b.m, b.v, adam_of(step));
     },
     false},
    {"average", [](Buffers& b, int64_t) { average_(b.u.values, 0.7, b.m, 0.3); },
     [](Buffers& b, int64_t) { average_reference_(b.u.values, 0.7, b.m, 0.3); }, false},
    {"lion", [](Buffers& b, int64_t) { lion_(b.u, b.m, kLion); },
     [](Buffers& b, int64_t) { lion_reference_(b.u, b.m, kLion); }},
};

template <class Body>
void for_every_instruction_set(const Body& body) {
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    SCOPED_TRACE(name(set));
    body();
  }
}

TEST(Update, EqualsItsReferenceForEveryRuleAndType) {
  for_every_instruction_set([] {
    for (const Rule& rule : kRules)
      for (const Types& types : all_types())
        for (const int64_t n : {1, 17, 33001}) {
          Buffers fast(n, types), plain(n, types);
          for (const int64_t step : {1, 2, 1000}) {
            rule.fast(fast, step);
            rule.reference(plain, step);
          }
          const std::string what = std::string(rule.name) + " of " + at::toString(types.values) + ", gradients " +
                                   at::toString(types.gradients);
          constexpr double kRoundings = 5;  // each side rounds in each of three steps, except once
          expect_close(fast.u.values, plain.u.values, types.values, 9, what, kRoundings);
          expect_close(fast.m, plain.m, types.values, 9, what + ", first state", kRoundings);
          expect_close(fast.v, plain.v, types.values, 9, what + ", second state", kRoundings);
          if (types.copy && rule.writes_copy) {
            EXPECT_TRUE(at::equal(fast.u.copy, fast.u.values.to(*types.copy))) << what;
          }
        }
  });
}

TEST(Update, FollowsTheFormulaOfAdam) {
  auto param = at::tensor({2.0}, at::kDouble), m = at::zeros({1}, at::kDouble), v = at::zeros({1}, at::kDouble);
  adam_reference_({param, at::tensor({4.0}, at::kDouble), {}, 0.5}, m, v, {.learning_rate = 0.01, .weight_decay = 0.1});
  // g = 2; m = 0.2, v = 0.004. Their bias corrections give g and g^2, so the first step is lr * sign(g).
  EXPECT_NEAR(m.item<double>(), 0.2, 1e-15);
  EXPECT_NEAR(v.item<double>(), 0.004, 1e-17);
  EXPECT_NEAR(param.item<double>(), 2 * (1 - 0.01 * 0.1) - 0.01 * 2 / (2 + 1e-8), 1e-15);
}

TEST(Update, WritesDirectionsOverGradients) {
  for_every_instruction_set([] {
    for (const int64_t n : {1, 17, 33001}) {
      Buffers b(n, {at::kFloat, at::kFloat}), adam(n, {at::kFloat, at::kFloat});
      const at::Tensor values = b.u.values.clone(), gradients = b.u.gradients.clone();
      AdamStep step{.learning_rate = 1, .weight_decay = 0.25, .step = 3};
      adam_direction_(b.u, b.u.gradients, b.m, b.v, step);
      EXPECT_TRUE(at::equal(b.u.values, values));
      adam_(adam.u, adam.m, adam.v, step);  // computes values - direction
      expect_close(values - b.u.gradients, adam.u.values, at::kFloat, 4, "direction");
      EXPECT_TRUE(at::equal(b.m, adam.m));
      EXPECT_TRUE(at::equal(b.v, adam.v));
    }
  });
  Buffers b(8, {at::kFloat, at::kFloat, at::kHalf});
  EXPECT_THROW(adam_direction_(b.u, b.u.gradients, b.m, b.v, {}), Error) << "a copy of values that stay";
  b.u.copy.reset();
  EXPECT_THROW(adam_direction_(b.u, at::zeros({7}), b.m, b.v, {}), Error);
}

TEST(Update, SubtractsTheAverage) {
  const at::Tensor x = at::tensor({8.0, -2.0}, at::kDouble), average = at::tensor({1.0, 1.0}, at::kDouble);
  average_(x, 0.5, average, 0.25);  // scaled values are 4 and -1; the average is 1
  EXPECT_TRUE(at::equal(average, at::tensor({1.75, 0.5}, at::kDouble)));
  EXPECT_TRUE(at::equal(x, at::tensor({2.25, -1.5}, at::kDouble)));
}

TEST(Update, AveragesLikeTheReference) {
  for_every_instruction_set([] {
    for (const auto type : {at::kDouble, at::kFloat})
      for (const int64_t n : {1, 17, 33001}) {
        const at::Tensor x = normal({n}, 1, type).to(type), average = normal({n}, 2, type).to(type);
        const at::Tensor wide = x.to(at::kDouble, false, true), wide_average = average.to(at::kDouble, false, true);
        average_(x, 0.3, average, 0.1);
        average_reference_(wide, 0.3, wide_average, 0.1);
        expect_close(x, wide, type, 3, "values");  // three operations per element
        expect_close(average, wide_average, type, 3, "average");
      }
  });
}

TEST(Update, FollowsTheFormulaOfLion) {
  auto param = at::tensor({2.0, 2.0, 2.0}, at::kDouble), m = at::tensor({1.0, -1.0, 0.0}, at::kDouble);
  lion_({param, at::tensor({-8.0, 2.0, 0.0}, at::kDouble)}, m,
        {.learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.5, .weight_decay = 0.5});
  // Directions 0.9 m + 0.1 g: 0.1, -0.7, 0. A direction of 0 leaves only the decay.
  EXPECT_TRUE(at::allclose(param, at::tensor({1.8, 2.0, 1.9}, at::kDouble), 1e-15, 1e-15)) << param;
  EXPECT_TRUE(at::equal(m, at::tensor({-3.5, 0.5, 0.0}, at::kDouble)));
}

TEST(Update, EqualsTheFusedOptimizersOfTorch) {
  const Types fp64{at::kDouble, at::kDouble};
  Buffers adamw(1000, fp64), adamw_torch(1000, fp64), adam(1000, fp64), adam_torch(1000, fp64), sgd(1000, fp64),
      sgd_torch(1000, fp64);
  for (auto* b : {&adamw, &adam, &sgd}) b->u.gradient_scale = 1;
  for (auto* b : {&sgd, &sgd_torch}) b->m.zero_();
  const auto counter = at::zeros({}, at::kFloat);
  for (int64_t step = 1; step <= 100; ++step) {
    counter.fill_(step);
    adam_(adamw.u, adamw.m, adamw.v, {.learning_rate = 0.01, .weight_decay = 0.1, .step = step});
    at::_fused_adamw_({adamw_torch.u.values}, {adamw_torch.u.gradients}, {adamw_torch.m}, {adamw_torch.v}, {},
                      {counter}, 0.01, 0.9, 0.999, 0.1, 1e-8, false, false);
    adam_(adam.u, adam.m, adam.v, {.learning_rate = 0.01, .penalty = 0.1, .step = step});
    at::_fused_adam_({adam_torch.u.values}, {adam_torch.u.gradients}, {adam_torch.m}, {adam_torch.v}, {}, {counter},
                     0.01, 0.9, 0.999, 0.1, 1e-8, false, false);
    sgd_(sgd.u, sgd.m, {.learning_rate = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
    at::_fused_sgd_({sgd_torch.u.values}, {sgd_torch.u.gradients}, {sgd_torch.m}, 0.1, 0.9, 0.01, 0.0, true, false,
                    step == 1);
  }
  expect_close(adamw.u.values, adamw_torch.u.values, at::kDouble, 400, "AdamW");
  expect_close(adam.u.values, adam_torch.u.values, at::kDouble, 400, "Adam");
  expect_close(sgd.u.values, sgd_torch.u.values, at::kDouble, 400, "SGD");
}

TEST(Update, ConvertsFp16LikeAten) {
  std::vector<float> hard{0.0f,
                          -0.0f,
                          0x1p-24f,
                          0x1p-25f,
                          0x1.8p-25f,
                          0x1p-26f,
                          0x1.004p-14f,
                          0x1.ffcp-15f,
                          65504,
                          65519.996f,
                          65520,
                          1e30f,
                          1.0009765625f,
                          1.00048828125f,
                          1.00146484375f,
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()};
  const size_t positive = hard.size();
  for (size_t i = 0; i < positive; ++i) hard.push_back(-hard[i]);
  const at::Tensor all = at::arange(0x10000, at::kInt).to(at::kShort).view(at::kHalf);  // all fp16 values
  const at::Tensor values = at::cat(
      {at::tensor(hard, at::kFloat), normal({1001}, 1).to(at::kFloat), normal({1001}, 2).to(at::kFloat) * 1e-6});
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return at::equal(a.isnan(), b.isnan()) && at::equal(a.nan_to_num(), b.nan_to_num());
  };
  for_every_instruction_set([&] {
    const at::Tensor read = at::zeros({all.numel()});  // p -= -1 g
    sgd_({read, all}, {}, {.learning_rate = -1});
    EXPECT_TRUE(same(read, all.to(at::kFloat)));
    const at::Tensor kept = at::zeros_like(values), copy = at::empty({values.numel()}, at::kHalf);
    sgd_({kept, values, copy}, {}, {.learning_rate = -1});
    EXPECT_TRUE(same(copy.to(at::kFloat), values.to(at::kHalf).to(at::kFloat)));
  });
}

TEST(Update, RoundsStochasticallyWithoutBias) {
  // 1 - 2^-11 is an eighth of the way from 1 down to the next bf16 value (1 - 2^-8). Rounding to nearest would never
  // move it.
  constexpr int64_t kDraws = 1 << 20;
  for_every_instruction_set([&] {
    at::Tensor values = at::ones({kDraws}, at::kBFloat16);
    const at::Tensor step = at::full({kDraws}, 0x1p-11, at::kBFloat16);
    sgd_({values, step}, {}, {.learning_rate = 1});
    EXPECT_EQ(values.to(at::kDouble).mean().item<double>(), 1);
    const at::Tensor momentum = at::ones_like(values);
    sgd_({values, step, {}, 1, FlatUpdate::Chance{7, 3}}, momentum, {.learning_rate = 1, .momentum = 1});
    // p = 1 - (1 + 2^-11), b = 1 + 2^-11, with ulps of 2^-7 and less. The deviations follow from means of fractions
    // 1/8 and 1/16.
    const double up = momentum.to(at::kDouble).sub(1).mean().item<double>();
    EXPECT_NEAR(up, 0x1p-11, 5 * 0x1p-7 * std::sqrt(1.0 / 16 / kDraws));
    EXPECT_GT(momentum.to(at::kDouble).sub(1).max().item<double>(), 0);
    at::Tensor moved = at::ones({kDraws}, at::kBFloat16);
    sgd_({moved, step, {}, 1, FlatUpdate::Chance{8, 0}}, {}, {.learning_rate = 1});
    EXPECT_NEAR(moved.to(at::kDouble).mean().item<double>(), 1 - 0x1p-11, 5 * 0x1p-8 * std::sqrt(1.0 / 8 / kDraws));
  });
}

TEST(Update, RoundsStochasticallyBySeedAndIndexOnly) {
  const auto stepped = [](int64_t from, int64_t to, uint64_t seed) {
    Buffers b(5001, {at::kBFloat16, at::kBFloat16});
    const auto part = [&](const at::Tensor& t) { return t.slice(0, from, to); };
    adam_({part(b.u.values), part(b.u.gradients), {}, 1, FlatUpdate::Chance{seed, static_cast<uint64_t>(from)}},
          part(b.m), part(b.v), adam_of(1));
    return part(b.u.values).clone();
  };
  const at::Tensor whole = stepped(0, 5001, 1);
  EXPECT_TRUE(at::equal(stepped(1000, 3333, 1), whole.slice(0, 1000, 3333)));
  EXPECT_FALSE(at::equal(stepped(0, 5001, 2), whole));
}

TEST(Update, RoundsStochasticallyLikeTheReference) {
  for_every_instruction_set([] {
    for (const Rule& rule : kRules) {
      if (!rule.writes_copy) continue;
      Buffers fast(2051, {at::kBFloat16, at::kBFloat16}), plain(2051, {at::kBFloat16, at::kBFloat16});
      fast.u.chance = plain.u.chance = FlatUpdate::Chance{11, 5};
      rule.fast(fast, 1);
      rule.reference(plain, 1);
      // If both differ in the last bit of fp32, stochastic rounding may rarely make that a bf16 bit.
      EXPECT_LT((fast.u.values != plain.u.values).sum().item<int64_t>(), 5) << rule.name;
      EXPECT_LT((fast.m != plain.m).sum().item<int64_t>() + (fast.v != plain.v).sum().item<int64_t>(), 5) << rule.name;
    }
  });
}

// The reference draws words in slices of 2^20. Elements after a slice border must still get the words of their indices.
TEST(Update, RoundsStochasticallyAcrossSlices) {
  constexpr int64_t kSlice = 1 << 20, kTail = 5;
  const auto stepped = [](int64_t from, int64_t size) {
    const auto options = at::TensorOptions().dtype(at::kBFloat16);
    const at::Tensor values = at::ones({size}, options), step = at::full({size}, 0x1p-11, options);
    sgd_reference_({values, step, {}, 1, FlatUpdate::Chance{9, static_cast<uint64_t>(from)}}, {}, {.learning_rate = 1});
    return values;
  };
  const at::Tensor whole = stepped(0, kSlice + kTail);
  EXPECT_TRUE(at::equal(whole.slice(0, kSlice - 64), stepped(kSlice - 64, 64 + kTail)));
  EXPECT_TRUE(whole.lt(1).any().item<bool>()) << "some were moved";
}

TEST(Update, StepsRangesOfALargerBuffer) {
  Buffers whole(100, {at::kFloat, at::kFloat}), parts(100, {at::kFloat, at::kFloat});
  adam_(whole.u, whole.m, whole.v, adam_of(1));
  for (const auto& [from, to] : {std::pair{0, 33}, std::pair{33, 100}}) {
    const auto part = [from = from, to = to](const at::Tensor& t) { return t.slice(0, from, to); };
    adam_({part(parts.u.values), part(parts.u.gradients), {}, 0.5}, part(parts.m), part(parts.v), adam_of(1));
  }
  expect_close(parts.u.values, whole.u.values, at::kFloat, 1, "values");
}

TEST(Update, RefusesMismatchedBuffers) {
  Buffers b(8, {at::kFloat, at::kFloat});
  const auto refused = [&](auto change, const char* message) {
    Buffers bad(8, {at::kFloat, at::kFloat});
    AdamStep step = adam_of(1);
    change(bad, step);
    try {
      adam_(bad.u, bad.m, bad.v, step);
      ADD_FAILURE() << "accepted: " << message;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  refused([](Buffers& bad, AdamStep&) { bad.u.gradients = at::zeros({7}); },
          "of equal length and on one device: got values [8] on cpu, gradients [7] on cpu");
  refused([](Buffers& bad, AdamStep&) { bad.u.gradients = at::zeros({8}, at::kDouble); },
          "gradients must have the dtype of the values");
  refused([](Buffers& bad, AdamStep&) { bad.m = at::zeros({8}, at::kDouble); }, "states must be like the values");
  refused([](Buffers& bad, AdamStep&) { bad.u.copy = at::zeros({8}); }, "the rounded copy must be bf16 or fp16");
  refused([](Buffers& bad, AdamStep&) { bad.u.chance = FlatUpdate::Chance{}; },
          "stochastic rounding needs bf16 values");
  refused([](Buffers&, AdamStep& step) { step.step = 0; }, "step must be at least 1: got 0");
  EXPECT_THROW(sgd_(b.u, {}, {.momentum = 0.9}), Error);
}

}  // namespace
}  // namespace colossal::ops::update_test
