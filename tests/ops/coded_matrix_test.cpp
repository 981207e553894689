// Products of quantized weights by LibTorch's operators: they must equal the products of the dequantized weights.
#include "colossal/ops/products/coded_matrix.h"

#include <ATen/core/grad_mode.h>

#include <limits>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/products/row_codes.h"
#include "ops/compare.h"

namespace colossal::ops::coded_matrix_test {
namespace {

TEST(CodedMatrix, MultipliesDequantizedValues) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16})
    for (const RoundingOptions& rounding :
         {RoundingOptions{.bits = 8, .group = 32}, RoundingOptions{.bits = 4, .group = 40},
          RoundingOptions{.bits = 4, .group = 128, .minima = true}}) {
      const at::Tensor w = normal({24, 131}, 1).to(at::kFloat), x = normal({2, 3, 131}, 2).to(type);
      const at::Tensor bias = normal({24}, 3).to(type);
      const GroupCodes codes = round_to_codes(w, rounding);
      const CodedMatrix matrix(codes, x.options());
      const at::Tensor want =
          at::linear(x.to(at::kDouble), codes.values().to(type).to(at::kDouble)) + bias.to(at::kDouble);
      expect_close(matrix.multiply(x, bias), want, type, 131, toString(type));
      EXPECT_EQ(matrix.bytes(), GroupWeight(codes).form().bytes());
    }
}

// Slices of outputs, the last one shorter than the others.
TEST(CodedMatrix, MultipliesSliceBySlice) {
  for (const RoundingOptions& rounding :
       {RoundingOptions{.bits = 8, .group = 32}, RoundingOptions{.bits = 4, .group = 128, .minima = true}}) {
    const GroupCodes codes = round_to_codes(normal({2090, 1111}, 1).to(at::kFloat), rounding);
    const CodedMatrix matrix(codes, at::TensorOptions(at::kFloat));
    const at::Tensor x = normal({3, 1111}, 2).to(at::kFloat);
    expect_close(matrix.multiply(x), at::linear(x.to(at::kDouble), codes.values().to(at::kDouble)), at::kFloat, 1111,
                 "y");
  }
}

TEST(CodedMatrix, MultipliesFp8) {
  const at::Tensor w = normal({24, 48}, 1) * normal({24, 1}, 4).exp(), x = normal({5, 48}, 2);
  const RowCodes rows = encode_rows(w, at::kFloat8_e4m3fn);
  const at::Tensor near = rows.codes.to(at::kDouble) * rows.scales.unsqueeze(-1);
  const CodedMatrix matrix(w, x.options());
  expect_close(matrix.multiply(x), at::linear(x, near), at::kDouble, 48, "fp8");
  EXPECT_EQ(matrix.bytes(), 24 * (48 + 4));
  EXPECT_THROW(CodedMatrix(w * std::numeric_limits<double>::infinity(), x.options()), Error);
}

// The CPU counterpart of the GPU operator takes codes in another order, but the same scales.
TEST(CodedMatrix, MatchesTheScalesOfTheInt4Operator) {
  for (const bool minima : {false, true}) {
    const at::Tensor w = normal({32, 128}, 1).to(at::kFloat), x = normal({3, 128}, 2).to(at::kBFloat16);
    const GroupCodes codes = round_to_codes(w, {.bits = 4, .group = 32, .minima = minima});
    const at::Tensor packed = at::_convert_weight_to_int4pack_for_cpu(codes.codes.to(at::kInt), 2);
    const at::Tensor got = at::_weight_int4pack_mm_for_cpu(x, packed, 32, int4_scales_and_zeros(codes));
    const at::Tensor want = at::linear(x.to(at::kDouble), codes.values().to(at::kDouble));
    // bf16 scales have a relative error of 1/512
    EXPECT_LT(((got - want).norm() / want.norm()).item<double>(), 0.01) << minima;
  }
}

}  // namespace
}  // namespace colossal::ops::coded_matrix_test
