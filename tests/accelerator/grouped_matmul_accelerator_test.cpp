// Products of groups of rows on accelerators. LibTorch's grouped operator must give the results of the loop.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "accelerator/on_accelerator.h"
#include "colossal/ops/device/operators.h"
#include "colossal/ops/products/grouped_matmul.h"
#include "ops/compare.h"
#include "support/accelerator.h"
#include "support/called_operators.h"

namespace colossal::ops::grouped_matmul_accelerator_test {
namespace {

class GroupedMatmulOnAccelerator : public test::AcceleratorTest {};

const GroupEnds kEnds{0, 5, 5, 30, 31, 31};
constexpr int64_t kRows = 31, kOut = 48, kIn = 24;

Tensors inputs(int64_t out) {
  const auto count = static_cast<int64_t>(kEnds.size());
  return {normal({kRows, kIn}, 1, at::kBFloat16), normal({count, out, kIn}, 2, at::kBFloat16),
          normal({count, out}, 3, at::kBFloat16), normal({kRows, out}, 4, at::kBFloat16),
          normal({count, out, kIn}, 5, at::kBFloat16)};
}

Tensors grouped(const Tensors& in) {
  const at::Tensor sum = in[4].to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  return {grouped_nt(in[0], in[1], kEnds, in[2]), grouped_nn(in[3], in[1], kEnds), grouped_tn(in[3], in[0], kEnds),
          grouped_tn(in[3], in[0], kEnds, sum), grouped_sums(in[3], kEnds)};
}

Tensors looped(const Tensors& in) {
  at::Tensor sums = at::zeros_like(in[2]);
  for (size_t group = 0; group < kEnds.size(); ++group) {
    const int64_t from = group == 0 ? 0 : kEnds[group - 1];
    sums[static_cast<int64_t>(group)].copy_(in[3].narrow(0, from, kEnds[group] - from).sum(0));
  }
  return {looped_nt(in[0], in[1], kEnds, in[2]), looped_nn(in[3], in[1], kEnds), looped_tn(in[3], in[0], kEnds),
          looped_tn(in[3], in[0], kEnds, in[4].clone()), sums};
}

void expect_loop(int64_t out, bool by_operator) {
  const Tensors exact = inputs(out), expected = looped(exact);
  Tensors narrow;
  for (const at::Tensor& x : exact) narrow.push_back(x.to(at::kBFloat16));
  const test::CalledOperators called;
  const Tensors got = test::on_accelerator(grouped)(narrow);
  EXPECT_EQ(called("_grouped_mm") > 0, by_operator);
  // A product is rounded before a bias or a sum is added.
  for (size_t i = 0; i < got.size(); ++i)
    expect_close(got[i], expected[i], at::kBFloat16, out + 1, "result " + std::to_string(i), 1);
}

TEST_F(GroupedMatmulOnAccelerator, EqualsALoop) {
  expect_loop(kOut, runs(DeviceOperator::GroupedProduct, test::accelerator()));
}

TEST_F(GroupedMatmulOnAccelerator, LoopsWithoutTheOperator) {
  const WithoutDeviceOperator none(DeviceOperator::GroupedProduct);
  expect_loop(kOut, false);
}

// The operator needs rows that begin at 16 bytes.
TEST_F(GroupedMatmulOnAccelerator, LoopsIfRowsAreNotAligned) { expect_loop(kOut + 1, false); }

}  // namespace
}  // namespace colossal::ops::grouped_matmul_accelerator_test
