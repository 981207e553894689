#include "colossal/ops/triangle.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/ops/activation.h"
#include "colossal/tensor/flops.h"
#include "ops/compare.h"
#include "support/thrown_message.h"

namespace colossal::ops::triangle_test {
namespace {

using testing::HasSubstr;

Operator product_by(at::Tensor (*product)(const at::Tensor&, const at::Tensor&, Triangle), Triangle triangle) {
  return [=](const Tensors& t) { return Tensors{product(t[0], t[1], triangle)}; };
}

TEST(TriangleProduct, EqualsItsReferenceInEachType) {
  for (const auto type : float_types()) {
    // More rows than a thread packs, a deeper sum than a block, channels that fill no vector.
    expect_equal_operators(product_by(triangle_product, Triangle::Outgoing),
                           product_by(triangle_product_reference, Triangle::Outgoing),
                           {normal({2, 7, 9, 19}, 1), normal({2, 4, 9, 19}, 2)}, type, 9);
    expect_equal_operators(product_by(triangle_product, Triangle::Incoming),
                           product_by(triangle_product_reference, Triangle::Incoming),
                           {normal({1, 260, 83, 3}, 1), normal({1, 260, 6, 3}, 2)}, type, 260);
  }
}

TEST(TriangleProduct, ReadsPartsOfFusedProjections) {
  const at::Tensor both = normal({1, 5, 5, 12}, 3);
  const at::Tensor a = both.narrow(3, 0, 6), b = both.narrow(3, 6, 6);
  EXPECT_TRUE(at::equal(triangle_product(a, b, Triangle::Incoming),
                        triangle_product(a.contiguous(), b.contiguous(), Triangle::Incoming)));
}

TEST(TriangleProduct, AnnouncesItsOperations) {
  const at::Tensor a = normal({2, 4, 5, 3}, 1).requires_grad_(), b = normal({2, 6, 5, 3}, 2).requires_grad_();
  const tensor::FlopCount all;
  const at::Tensor x = triangle_product(a, b, Triangle::Outgoing);
  EXPECT_EQ(all.total(), 2.0 * 2 * 4 * 5 * 6 * 3);
  x.sum().backward();
  EXPECT_EQ(all.total(), 3 * 2.0 * 2 * 4 * 5 * 6 * 3);
}

TEST(TriangleProduct, HasSizesOnMeta) {
  const at::Tensor a = at::empty({2, 4, 5, 3}, at::kMeta).requires_grad_(), b = at::empty({2, 6, 5, 3}, at::kMeta);
  const at::Tensor x = triangle_product(a, b, Triangle::Outgoing);
  x.sum().backward();
  EXPECT_THAT(x.sizes(), testing::ElementsAre(2, 4, 6, 3));
  EXPECT_EQ(a.grad().sizes(), a.sizes());
  EXPECT_THAT(test::thrown_message([&] { triangle_product(a, b, Triangle::Incoming); }),
              HasSubstr("edges must have one batch, third node, number of channels and dtype"));
}

Operator mean_by(at::Tensor (*mean)(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                    const at::Tensor&),
                 const at::Tensor& counts) {
  return [=](const Tensors& t) { return Tensors{mean(t[0], t[1], t[2], t[3], counts)}; };
}

TEST(OuterProductMean, EqualsItsReferenceInEachType) {
  const at::Tensor counts = at::rand({2, 4, 5}, at::kDouble) + 1;
  for (const auto type : {at::kDouble, at::kFloat})
    expect_equal_operators(mean_by(outer_product_mean, counts), mean_by(outer_product_mean_reference, counts),
                           {normal({2, 3, 4, 2}, 1), normal({2, 3, 5, 3}, 2), normal({7, 6}, 3), normal({7}, 4)}, type,
                           2 * 3 * 4 * 5 * 7 * 6);
  const at::Tensor a = normal({2, 3, 4, 2}, 1, at::kBFloat16), w = normal({7, 4}, 3, at::kBFloat16);
  const auto narrow = [](const at::Tensor& x) { return x.to(at::kBFloat16); };
  expect_close(outer_product_mean(narrow(a), narrow(a), narrow(w), {}, narrow(counts.narrow(2, 0, 4))),
               outer_product_mean_reference(a, a, w, {}, narrow(counts.narrow(2, 0, 4)).to(at::kDouble)), at::kBFloat16,
               12, "bf16");
}

TEST(OuterProductMean, TakesGradientsOfAnyStrides) {
  const at::Tensor counts = at::rand({2, 4, 4}, at::kDouble) + 1, w = normal({7, 4}, 3), dy = normal({4, 4, 2, 7}, 5);
  std::vector<at::Tensor> gradients;
  for (const auto& mean : {outer_product_mean, outer_product_mean_reference}) {
    const at::Tensor a = normal({2, 3, 4, 2}, 1).requires_grad_();
    mean(a, a, w, {}, counts).permute({2, 1, 0, 3}).backward(dy);
    gradients.push_back(a.grad());
  }
  expect_close(gradients[0], gradients[1], at::kDouble, 100, "gradient of a");
}

TEST(OuterProductMean, AddsUpTheSlicesOfLongChains) {
  const at::Tensor counts = at::ones({1, 23, 100}, at::kDouble);  // slices of 10, 10 and 3
  expect_equal_operators(mean_by(outer_product_mean, counts), mean_by(outer_product_mean_reference, counts),
                         {normal({1, 2, 23, 16}, 1), normal({1, 2, 100, 64}, 2), normal({2, 1024}, 3), normal({2}, 4)},
                         at::kDouble, 23 * 100 * 2);
}

TEST(OuterProductMean, HasSizesOnMetaAndRefusesOthers) {
  const auto on_meta = [](at::IntArrayRef sizes) { return at::empty(sizes, at::kMeta).requires_grad_(); };
  const at::Tensor a = on_meta({2, 3, 4, 2}), b = on_meta({2, 3, 5, 3}), w = on_meta({7, 6});
  const at::Tensor y = outer_product_mean(a, b, w, {}, at::empty({2, 4, 5}, at::kMeta));
  y.sum().backward();
  EXPECT_THAT(y.sizes(), testing::ElementsAre(2, 4, 5, 7));
  EXPECT_EQ(w.grad().sizes(), w.sizes());
  EXPECT_THAT(test::thrown_message([&] { outer_product_mean(a, b, w, {}, at::empty({2, 4, 4}, at::kMeta)); }),
              HasSubstr("counts [B,I,J] must fit"));
}

TEST(SigmoidGate, EqualsItsReferenceInEachType) {
  for (const auto type : float_types())
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 7}, {2, 3, 33}})
      expect_equal_operators([](const Tensors& t) { return Tensors{sigmoid_gate(t[0], t[1])}; },
                             [](const Tensors& t) { return Tensors{sigmoid_gate_reference(t[0], t[1])}; },
                             {normal(shape, 1), normal(shape, 2)}, type, 1, type == at::kHalf ? 2 : 0);
  EXPECT_THAT(test::thrown_message([] { sigmoid_gate(at::ones({2}), at::ones({3})); }),
              HasSubstr("gate and up must have one shape"));
}

}  // namespace
}  // namespace colossal::ops::triangle_test
