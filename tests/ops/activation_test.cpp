#include "colossal/ops/activation.h"

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops::activation_test {
namespace {

// The reference computes in the same dtype steps of its own; 16 roundings of numbers as large as the result bound both.
constexpr int64_t kSteps = 16;
const std::vector<std::vector<int64_t>> kShapes{{1, 2}, {3, 14}, {2, 5, 64}, {131, 34}, {9, 20000}, {6}};

TEST(Activation, EqualsItsReference) {
  for (const auto type : float_types())
    for (const auto& shape : kShapes) {
      SCOPED_TRACE(at::IntArrayRef(shape));
      const auto x = normal(shape, 1), up = normal(shape, 2);
      const double silu = type == at::kHalf ? 1 : 0;  // without a kernel of its own it is rounded before it meets `up`
      expect_equal_operators([](const Tensors& t) { return Tensors{ops::gelu(t[0])}; },
                             [](const Tensors& t) { return Tensors{gelu_reference(t[0])}; }, {x}, type, kSteps);
      expect_equal_operators([](const Tensors& t) { return Tensors{swiglu(t[0], t[1])}; },
                             [](const Tensors& t) { return Tensors{swiglu_reference(t[0], t[1])}; }, {x, up}, type,
                             kSteps, silu);
      expect_equal_operators([](const Tensors& t) { return Tensors{swiglu(t[0])}; },
                             [](const Tensors& t) {
                               const auto halves = t[0].chunk(2, -1);
                               return Tensors{swiglu_reference(halves[0], halves[1])};
                             },
                             {x}, type, kSteps, silu);
    }
}

TEST(Activation, ExactGeluIsItsFormula) {
  for (const auto type : float_types())
    expect_equal_operators([](const Tensors& t) { return Tensors{exact_gelu(t[0])}; },
                           [](const Tensors& t) { return Tensors{t[0] / 2 * (1 + (t[0] / std::sqrt(2.0)).erf())}; },
                           {normal({131, 34}, 1)}, type, kSteps);
}

TEST(Activation, HoldsAtExtremeInputs) {
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    const auto x = at::tensor({-1e30, -200.0, -20.0, 0.0, 20.0, 200.0, 1e30}, at::kFloat);
    const auto y = ops::gelu(x);
    EXPECT_TRUE(at::allclose(y, at::gelu(x, "tanh"))) << y;
    EXPECT_TRUE(ops::gelu(at::full({3}, std::nan(""), at::kFloat)).isnan().all().item<bool>());
    EXPECT_TRUE(ops::gelu_backward(at::ones_like(x), x).slice(0, 1, 6).isfinite().all().item<bool>());
  }
}

TEST(Activation, ReadsNonContiguousInput) {
  const auto wide = normal({8, 24}, 1);
  for (const auto& x : {wide.slice(1, 2, 14), wide.slice(1, 0, 24, 2), wide.slice(0, 0, 8, 2), wide.t()}) {
    expect_close(ops::gelu(x), gelu_reference(x), at::kDouble, kSteps, "gelu");
    expect_close(swiglu(x, x + 1), swiglu_reference(x, x + 1), at::kDouble, kSteps, "swiglu");
    const auto halves = x.chunk(2, -1);
    expect_close(swiglu(x), swiglu_reference(halves[0], halves[1]), at::kDouble, kSteps, "fused swiglu");
    expect_close(swiglu(halves[0], halves[1]), swiglu_reference(halves[0], halves[1]), at::kDouble, kSteps, "halves");
  }
}

TEST(Activation, RefusesShapesThatDoNotFit) {
  EXPECT_THROW(swiglu(normal({2, 3}, 1)), Error);
  EXPECT_THROW(swiglu(normal({2, 3}, 1), normal({2, 4}, 1)), Error);
}

}  // namespace
}  // namespace colossal::ops::activation_test
