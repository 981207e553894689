#include "colossal/ops/adamw.h"

#include <numeric>

#include "colossal/base/error.h"
#include "colossal/ops/reduce.h"
#include "ops/compare.h"

namespace colossal::ops {
namespace {

struct Buffers {
  at::Tensor param, grad, exp_avg, exp_avg_sq;
  Buffers(int64_t n, at::ScalarType type, at::ScalarType grad_type)
      : param(normal({n}, 1).to(type)),
        grad(normal({n}, 2).to(grad_type)),
        exp_avg(normal({n}, 3).mul(0.1).to(type)),
        exp_avg_sq(normal({n}, 4).square().to(type)) {}
};

AdamWStep step_of(int64_t step) {
  AdamWStep options;
  options.learning_rate = 0.01, options.weight_decay = 0.1, options.step = step, options.gradient_scale = 0.5;
  return options;
}

TEST(AdamW, EqualsItsReferenceForEveryVariant) {
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const auto& [type, grad_type] : std::vector<std::pair<at::ScalarType, at::ScalarType>>{
             {at::kDouble, at::kDouble}, {at::kFloat, at::kFloat}, {at::kFloat, at::kBFloat16}, {at::kBFloat16, at::kBFloat16}})
      for (const int64_t n : {1, 17, 100003}) {
        Buffers fast(n, type, grad_type), plain(n, type, grad_type);
        for (const int64_t step : {1, 2, 1000}) {
          adamw_(fast.param, fast.grad, fast.exp_avg, fast.exp_avg_sq, step_of(step));
          adamw_reference_(plain.param, plain.grad, plain.exp_avg, plain.exp_avg_sq, step_of(step));
        }
        expect_close(fast.param, plain.param, type, 9, "param");
        expect_close(fast.exp_avg, plain.exp_avg, type, 9, "exp_avg");
        expect_close(fast.exp_avg_sq, plain.exp_avg_sq, type, 9, "exp_avg_sq");
      }
  }
}

TEST(AdamW, FollowsTheFormulaByHand) {
  auto param = at::tensor({2.0}, at::kDouble), m = at::zeros({1}, at::kDouble), v = at::zeros({1}, at::kDouble);
  const auto grad = at::tensor({4.0}, at::kDouble);
  adamw_reference_(param, grad, m, v, step_of(1));
  // g = 2; m = 0.2, v = 0.004; corrected both to g and g^2: the first step is lr * sign(g).
  EXPECT_NEAR(m.item<double>(), 0.2, 1e-15);
  EXPECT_NEAR(v.item<double>(), 0.004, 1e-17);
  EXPECT_NEAR(param.item<double>(), 2 * (1 - 0.01 * 0.1) - 0.01 * 2 / (2 + 1e-8), 1e-15);
}

TEST(AdamW, EqualsTheFusedOptimizerOfTorch) {
  Buffers ours(1000, at::kDouble, at::kDouble), theirs(1000, at::kDouble, at::kDouble);
  auto options = step_of(1);
  options.gradient_scale = 1;
  const auto counter = at::zeros({}, at::kFloat);
  for (int64_t step = 1; step <= 5; ++step) {
    options.step = step;
    adamw_(ours.param, ours.grad, ours.exp_avg, ours.exp_avg_sq, options);
    counter.fill_(step);
    at::_fused_adamw_({theirs.param}, {theirs.grad}, {theirs.exp_avg}, {theirs.exp_avg_sq}, {}, {counter}, options.learning_rate,
                      options.beta1, options.beta2, options.weight_decay, options.epsilon, false, false);
  }
  expect_close(ours.param, theirs.param, at::kDouble, 25, "param");
}

TEST(AdamW, WritesTheRoundedCopy) {
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    Buffers b(1001, at::kFloat, at::kBFloat16);
    auto copy = at::empty({1001}, at::kBFloat16);
    adamw_(b.param, b.grad, b.exp_avg, b.exp_avg_sq, step_of(3), copy);
    EXPECT_TRUE(at::equal(copy, b.param.to(at::kBFloat16)));
  }
}

TEST(AdamW, StepsRangesOfALargerBuffer) {
  Buffers whole(100, at::kFloat, at::kFloat), parts(100, at::kFloat, at::kFloat);
  adamw_(whole.param, whole.grad, whole.exp_avg, whole.exp_avg_sq, step_of(1));
  for (const auto& [from, to] : {std::pair{0, 33}, std::pair{33, 100}}) {
    auto param = parts.param.slice(0, from, to), m = parts.exp_avg.slice(0, from, to), v = parts.exp_avg_sq.slice(0, from, to);
    adamw_(param, parts.grad.slice(0, from, to), m, v, step_of(1));
  }
  expect_close(parts.param, whole.param, at::kFloat, 1, "param");
}

TEST(AdamW, RefusesBuffersThatDoNotFit) {
  Buffers b(8, at::kFloat, at::kFloat);
  auto shorter = at::zeros({7}), wide = at::zeros({8}, at::kDouble);
  EXPECT_THROW(adamw_(b.param, shorter, b.exp_avg, b.exp_avg_sq, step_of(1)), Error);
  EXPECT_THROW(adamw_(b.param, wide, b.exp_avg, b.exp_avg_sq, step_of(1)), Error);
  EXPECT_THROW(adamw_(b.param, b.grad, wide, b.exp_avg_sq, step_of(1)), Error);
  EXPECT_THROW(adamw_(b.param, b.grad, b.exp_avg, b.exp_avg_sq, step_of(0)), Error);
}

TEST(SumOfSquares, EqualsItsReferenceForEveryVariant) {
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const auto type : float_types())
      for (const int64_t n : {0, 1, 31, 1024, 300007}) {
        const auto x = normal({n}, 1, type).to(type);
        // Squares are rounded in the computing type within runs of 1024, the runs are summed in fp64.
        const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
        expect_close(sum_of_squares(x), sum_of_squares_reference(x), wide, 32, at::toString(type));
        EXPECT_EQ(sum_of_squares(x).item<double>(), sum_of_squares(x).item<double>());
      }
  }
}

TEST(SumOfSquares, KeepsSmallTermsBesideLargeOnes) {
  auto x = at::full({1 << 22}, 1.0f);
  x[0] = 4000.0f;  // in fp32 the ones would be lost as soon as the sum is past 2^24
  EXPECT_EQ(sum_of_squares(x).item<double>(), 4000.0 * 4000.0 + (1 << 22) - 1);
}

TEST(Zero, ClearsEverything) {
  for (const auto type : float_types()) {
    auto x = normal({300001}, 1).to(type);
    ops::zero_(x);
    EXPECT_EQ(x.abs().max().item<double>(), 0);
  }
}

}  // namespace
}  // namespace colossal::ops
