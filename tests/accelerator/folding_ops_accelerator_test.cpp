// The operators of folding models on an accelerator, where LibTorch's operators compute them slice by slice.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "accelerator/on_accelerator.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/attention/biased.h"
#include "colossal/ops/triangle.h"
#include "ops/compare.h"
#include "support/accelerator.h"

namespace colossal::ops::folding_ops_accelerator_test {
namespace {

using test::on_accelerator;

class FoldingOpsOnAccelerator : public test::AcceleratorTest {};

TEST_F(FoldingOpsOnAccelerator, AttentionWithASharedBiasEqualsItsReference) {
  const Tensors in{normal({2, 3, 2, 5, 4}, 1), normal({2, 3, 2, 6, 4}, 2), normal({2, 3, 2, 6, 4}, 3),
                   normal({2, 2, 5, 6}, 4)};
  at::Tensor keys = at::ones({2, 3, 6}, at::kBool);
  keys[0][1].narrow(0, 2, 4).fill_(false);
  keys[1][2].fill_(false);
  for (const auto type : {at::kDouble, at::kFloat})
    expect_equal_operators(
        on_accelerator([&](const Tensors& t) {
          return Tensors{biased_attention(t[0], t[1], t[2], {.bias = t[3], .keys = keys})};
        }),
        [&](const Tensors& t) {
          return Tensors{biased_attention_reference(t[0], t[1], t[2], {.bias = t[3], .keys = keys})};
        },
        in, type, 3 * 6 * 4);
}

TEST_F(FoldingOpsOnAccelerator, TriangleProductsEqualTheirReferences) {
  for (const auto triangle : {Triangle::Outgoing, Triangle::Incoming})
    for (const auto type : {at::kDouble, at::kFloat})
      expect_equal_operators(
          on_accelerator([=](const Tensors& t) { return Tensors{triangle_product(t[0], t[1], triangle)}; }),
          [=](const Tensors& t) { return Tensors{triangle_product_reference(t[0], t[1], triangle)}; },
          {normal({2, 5, 5, 3}, 1), normal({2, 5, 5, 3}, 2)}, type, 5);
}

TEST_F(FoldingOpsOnAccelerator, OuterProductMeansEqualTheirReference) {
  const at::Tensor counts = at::full({2, 4, 5}, 3.001, at::kDouble);
  expect_equal_operators(
      on_accelerator([&](const Tensors& t) {
        return Tensors{outer_product_mean(t[0], t[1], t[2], t[3], counts.to(t[0].device()))};
      }),
      [&](const Tensors& t) { return Tensors{outer_product_mean_reference(t[0], t[1], t[2], t[3], counts)}; },
      {normal({2, 3, 4, 2}, 1), normal({2, 3, 5, 3}, 2), normal({7, 6}, 3), normal({7}, 4)}, at::kDouble,
      3 * 5 * 7 * 6);
}

TEST_F(FoldingOpsOnAccelerator, GatesEqualTheirReference) {
  expect_equal_operators(
      on_accelerator([](const Tensors& t) { return Tensors{sigmoid_gate(t[0], t[1])}; }),
      [](const Tensors& t) { return Tensors{sigmoid_gate_reference(t[0], t[1])}; },
      {normal({3, 7}, 1), normal({3, 7}, 2)}, at::kFloat, 1);
}

}  // namespace
}  // namespace colossal::ops::folding_ops_accelerator_test
