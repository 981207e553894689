// Sums of squared distances of points against a plain formula, and their gradients.
#include "colossal/ops/geometry/point_distances.h"

#include <gmock/gmock.h>

#include "ops/compare.h"
#include "support/thrown_message.h"

namespace colossal::ops::point_distances_test {
namespace {

at::Tensor plain(const at::Tensor& q, const at::Tensor& k) {
  return (q.unsqueeze(2) - k.unsqueeze(1)).square().sum({-1, -2}).permute({0, 3, 1, 2});
}

TEST(PointDistances, EqualThePlainFormulaWithGradients) {
  const Tensors points{normal({2, 5, 3, 4, 3}, 1), normal({2, 7, 3, 4, 3}, 2)};
  for (const auto type : {at::kDouble, at::kFloat})
    expect_equal_operators([](const Tensors& t) { return Tensors{summed_squared_distances(t[0], t[1])}; },
                           [](const Tensors& t) { return Tensors{plain(t[0], t[1])}; }, points, type, 12 * 7);
}

TEST(PointDistances, SliceManyPairs) {
  const at::Tensor q = normal({1, 300, 2, 2, 3}, 1), k = normal({1, 301, 2, 2, 3}, 2);
  EXPECT_LT((summed_squared_distances(q, k) - plain(q, k)).abs().max().item<double>(), 1e-12);
}

TEST(PointDistances, LoseNoDigitsFarFromTheOrigin) {
  const at::Tensor q = normal({1, 3, 1, 4, 3}, 1, at::kFloat), k = normal({1, 3, 1, 4, 3}, 2, at::kFloat);
  const at::Tensor far_q = (q + 4096).to(at::kFloat), far_k = (k + 4096).to(at::kFloat);
  const at::Tensor want = plain(far_q.to(at::kDouble), far_k.to(at::kDouble));
  const at::Tensor error = (summed_squared_distances(far_q, far_k).to(at::kDouble) - want).abs();
  EXPECT_LT(error.max().item<double>(), 1e-6 * want.max().item<double>());
}

TEST(PointDistances, RefuseOtherSizes) {
  const at::Tensor q = at::zeros({1, 3, 2, 4, 3});
  EXPECT_THAT(test::thrown_message([&] { summed_squared_distances(q, q.narrow(3, 0, 2)); }),
              testing::HasSubstr("points must be [B, N, H, P, 3] and [B, M, H, P, 3] of one dtype"));
}

TEST(PointDistances, HaveShapesOnMeta) {
  const at::Tensor q = at::empty({1, 3, 2, 4, 3}, at::TensorOptions(at::kFloat).device(at::kMeta)).requires_grad_(true);
  const at::Tensor sum = summed_squared_distances(q, q.detach().narrow(1, 0, 2));
  EXPECT_EQ(sum.sizes(), at::IntArrayRef({1, 2, 3, 2}));
  EXPECT_EQ(torch::autograd::grad({sum.sum()}, {q})[0].sizes(), q.sizes());
}

}  // namespace
}  // namespace colossal::ops::point_distances_test
