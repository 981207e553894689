// Products with weights in bf16, and in 8 bits with a scale per row: those of the decoded weights.
#include "colossal/ops/products/row_matrix.h"

#include "colossal/base/error.h"
#include "colossal/ops/products/row_codes.h"
#include "ops/compare.h"

namespace colossal::ops::row_matrix_test {
namespace {

RowMatrix matrix_of(const at::Tensor& weight, bool scaled) {
  if (!scaled) return RowMatrix(weight.to(at::kBFloat16));
  const RowCodes coded = encode_rows(weight, at::kChar);
  return RowMatrix(coded.codes, coded.scales);
}

// The last size has several slices of outputs and of inputs, and none that they divide.
TEST(RowMatrix, MultipliesDecodedValues) {
  for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{70, 33}, {1, 5}, {2100, 600}})
    for (const bool scaled : {false, true})
      for (const at::ScalarType type : float_types()) {
        const at::Tensor weight = normal({outputs, inputs}, 1);
        const RowMatrix matrix = matrix_of(weight, scaled);
        const at::Tensor w = matrix.dequantize(type).to(at::kDouble);
        const at::Tensor x = normal({2, 3, inputs}, 2, type), bias = normal({outputs}, 3, type);
        const std::string what = std::string(at::toString(type)) + (scaled ? " int8" : " bf16");
        expect_close(matrix.multiply(x.to(type), bias.to(type)), at::linear(x, w, bias), type, inputs, what, 1);
        const at::Tensor dy = normal({2, 3, outputs}, 4, type);
        expect_close(matrix.input_gradient(dy.to(type)), at::matmul(dy, w), type, outputs, what);
      }
}

TEST(RowMatrix, HasTheValuesOfItsCodes) {
  const at::Tensor weight = normal({6, 40}, 1);
  EXPECT_TRUE(at::equal(matrix_of(weight, false).dequantize(at::kDouble), weight.to(at::kBFloat16).to(at::kDouble)));
  const RowCodes coded = encode_rows(weight, at::kChar);
  const at::Tensor values = coded.codes.to(at::kFloat) * coded.scales.unsqueeze(1);
  EXPECT_TRUE(at::equal(matrix_of(weight, true).dequantize(at::kFloat), values));
  EXPECT_LE((values - weight.to(at::kFloat)).abs().max().item<float>(),
            weight.abs().max().item<double>() / 254 * (1 + 1e-6));
  const at::Tensor own = weight.clone();
  EXPECT_FALSE(RowMatrix(own).dequantize(own.scalar_type()).is_alias_of(own)) << "the result is the caller's";
}

TEST(RowMatrix, RefusesOtherSizes) {
  const RowMatrix matrix = matrix_of(normal({6, 40}, 1), true);
  EXPECT_THROW(matrix.multiply(at::zeros({2, 41})), Error);
  EXPECT_THROW(matrix.multiply(at::zeros({2, 40}), at::zeros({5})), Error);
  EXPECT_THROW(matrix.input_gradient(at::zeros({2, 40})), Error);
  EXPECT_THROW(RowMatrix(at::zeros({6})), Error);
  EXPECT_THROW(RowMatrix(at::zeros({6, 4}, at::kChar), at::zeros({5})), Error);
}

}  // namespace
}  // namespace colossal::ops::row_matrix_test
