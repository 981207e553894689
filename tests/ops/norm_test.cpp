#include "colossal/ops/norm.h"

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops::norm_test {
namespace {

constexpr double kEpsilon = 1e-5;
const std::vector<std::vector<int64_t>> kShapes{{1, 5}, {3, 7}, {2, 5, 64}, {129, 33}, {40, 768}, {7}};

Tensors inputs_of(const std::vector<int64_t>& shape) {
  return {normal(shape, 1) + 0.5, normal({shape.back()}, 3), normal({shape.back()}, 4)};
}

TEST(Norm, EqualsItsReference) {
  for (const auto type : float_types())
    for (const auto& shape : kShapes) {
      SCOPED_TRACE(at::IntArrayRef(shape));
      const auto in = inputs_of(shape);
      expect_equal_operators([](const Tensors& t) { return Tensors{layer_norm(t[0], t[1], t[2], kEpsilon)}; },
                             [](const Tensors& t) { return Tensors{layer_norm_reference(t[0], t[1], t[2], kEpsilon)}; },
                             in, type, in[0].numel());
      expect_equal_operators([](const Tensors& t) { return Tensors{rms_norm(t[0], t[1], kEpsilon)}; },
                             [](const Tensors& t) { return Tensors{rms_norm_reference(t[0], t[1], kEpsilon)}; },
                             {in[0], in[1]}, type, in[0].numel());
    }
}

TEST(Norm, AddsTheOffsetToTheWeight) {
  for (const auto type : float_types())
    for (const auto& shape : kShapes) {
      SCOPED_TRACE(at::IntArrayRef(shape));
      const auto in = inputs_of(shape);
      expect_equal_operators(
          [](const Tensors& t) { return Tensors{layer_norm(t[0], t[1], t[2], kEpsilon, 1)}; },
          [](const Tensors& t) { return Tensors{layer_norm_reference(t[0], t[1] + 1, t[2], kEpsilon)}; }, in, type,
          in[0].numel());
      expect_equal_operators([](const Tensors& t) { return Tensors{rms_norm(t[0], t[1], kEpsilon, 1)}; },
                             [](const Tensors& t) { return Tensors{rms_norm_reference(t[0], t[1] + 1, kEpsilon)}; },
                             {in[0], in[1]}, type, in[0].numel());
    }
}

// 1 + 2^-9 rounds to 1 in bf16. If the result is rounded only once, the offset still makes a difference.
TEST(Norm, KeepsDigitsOfSmallWeights) {
  const auto x = normal({1, 64}, 1, at::kBFloat16), weight = at::full({64}, 0x1p-9, at::kDouble);
  const auto y = rms_norm(x.to(at::kBFloat16), weight.to(at::kBFloat16), kEpsilon, 1);
  expect_close(y, rms_norm_reference(x, weight + 1, kEpsilon), at::kBFloat16, 64, "y");
  EXPECT_FALSE(at::equal(y, rms_norm_reference(x, at::ones_like(weight), kEpsilon).to(at::kBFloat16)));
}

TEST(Norm, SupportsMissingBiasAndPartialGradients) {
  const auto x = normal({5, 9}, 1), weight = normal({9}, 2).requires_grad_(true);
  layer_norm(x, weight, {}, kEpsilon).sum().backward();
  const auto fused = weight.grad().clone();
  weight.mutable_grad() = at::Tensor();
  layer_norm_reference(x, weight, {}, kEpsilon).sum().backward();
  expect_close(fused, weight.grad(), at::kDouble, 45, "weight gradient");
  const auto leaf = x.clone().requires_grad_(true);
  rms_norm(leaf, weight.detach(), kEpsilon).sum().backward();
  EXPECT_TRUE(leaf.grad().defined());
}

TEST(Norm, ReadsNonContiguousInput) {
  const auto wide = normal({6, 20}, 1), weight = normal({10}, 2), bias = normal({10}, 3);
  for (const auto& x : {wide.slice(1, 0, 20, 2), wide.slice(1, 5, 15), normal({10, 6}, 5).t()})
    expect_close(layer_norm(x, weight, bias, kEpsilon), layer_norm_reference(x, weight, bias, kEpsilon), at::kDouble,
                 60, "y");
}

TEST(Norm, RefusesAWeightOfAnotherLength) {
  EXPECT_THROW(rms_norm(normal({2, 4}, 1), normal({5}, 2), kEpsilon), Error);
  EXPECT_THROW(layer_norm(normal({2, 4}, 1), normal({4}, 2), normal({3}, 2), kEpsilon), Error);
}

}  // namespace
}  // namespace colossal::ops::norm_test
