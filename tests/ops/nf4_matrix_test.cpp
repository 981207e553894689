// Products with weights in NF4: they must equal the products of the dequantized weights.
#include "colossal/ops/products/nf4_matrix.h"

#include "colossal/base/error.h"
#include "colossal/tensor/flops.h"
#include "ops/compare.h"

namespace colossal::ops::nf4_matrix_test {
namespace {

/// A matrix of three weights of different sizes, as q, k and v of a folder.
Nf4Matrix fused(int64_t inputs, bool double_quantized, bool transposed) {
  std::vector<Nf4Weight> parts;
  for (const int64_t outputs : {70, 1, 33}) {
    const at::Tensor weight = normal({outputs, inputs}, static_cast<uint64_t>(outputs));
    parts.push_back(quantize_nf4(transposed ? weight.t() : weight, {double_quantized, transposed}));
  }
  return Nf4Matrix(std::move(parts));
}

TEST(Nf4Matrix, MultipliesDequantizedValues) {
  for (const int64_t inputs : {64, 131, 5})
    for (const bool transposed : {false, true})
      for (const at::ScalarType type : float_types())
        for (const auto set : runnable_instruction_sets()) {
          const InstructionSetScope scope(set);
          const Nf4Matrix matrix = fused(inputs, transposed, transposed);
          const at::Tensor w = matrix.dequantize(type).to(at::kDouble);
          const at::Tensor x = normal({2, 3, inputs}, 2, type), bias = normal({104}, 3, type);
          const std::string what = std::string(name(set)) + " " + at::toString(type) + " " + std::to_string(inputs);
          // The product is rounded before the bias is added.
          expect_close(matrix.multiply(x.to(type), bias.to(type)), at::linear(x, w, bias), type, inputs, what, 1);
          const at::Tensor dy = normal({2, 3, 104}, 4, type);
          expect_close(matrix.input_gradient(dy.to(type)), at::matmul(dy, w), type, 104, what);
        }
}

// More outputs and inputs than a slice has, and none that a slice divides.
TEST(Nf4Matrix, MultipliesInSlices) {
  for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{4700, 70}, {70, 4700}, {300, 5000}}) {
    const Nf4Matrix matrix({quantize_nf4(normal({outputs, inputs}, 1), {})});
    const at::Tensor w = matrix.dequantize(at::kFloat).to(at::kDouble);
    const at::Tensor x = normal({3, inputs}, 2, at::kFloat), dy = normal({3, outputs}, 3, at::kFloat);
    expect_close(matrix.multiply(x.to(at::kFloat)), at::linear(x, w), at::kFloat, inputs, "y");
    expect_close(matrix.input_gradient(dy.to(at::kFloat)), at::mm(dy, w), at::kFloat, outputs, "dx");
  }
}

// dx is the gradient that LibTorch computes for the dequantized weight.
TEST(Nf4Matrix, HasTheGradientOfTheInput) {
  const Nf4Matrix matrix = fused(96, true, false);
  const at::Tensor x = normal({5, 96}, 5).requires_grad_(true), dy = normal({5, 104}, 6);
  at::linear(x, matrix.dequantize(at::kDouble)).backward(dy);
  expect_close(matrix.input_gradient(dy), x.grad(), at::kDouble, 104, "dx");
}

TEST(Nf4Matrix, ViewsTheBytesOfAParameter) {
  const Nf4Matrix matrix = fused(131, true, false);
  std::vector<Nf4Form> forms;
  std::vector<at::Tensor> bytes;
  for (const Nf4Weight& part : matrix.parts()) forms.push_back(part.form()), bytes.push_back(part.bytes());
  const at::Tensor all = at::cat(bytes);
  EXPECT_EQ(all.numel(), bytes_of(forms));
  const Nf4Matrix again = Nf4Matrix::of(forms, all);
  EXPECT_TRUE(at::equal(again.dequantize(at::kFloat), matrix.dequantize(at::kFloat)));
  all.zero_();
  EXPECT_TRUE(again.dequantize(at::kFloat).eq(0).all().item<bool>());
  EXPECT_THROW(Nf4Matrix::of(forms, all.narrow(0, 0, all.numel() - 16)), Error);
}

TEST(Nf4Matrix, DecodesParts) {
  for (const bool transposed : {false, true}) {
    const Nf4Matrix matrix = fused(131, false, transposed);
    const at::Tensor whole = matrix.dequantize(at::kFloat);
    const MatrixPart part{.row = 60, .rows = 30, .column = 7, .columns = 100};
    EXPECT_TRUE(at::equal(matrix.dequantize(at::kFloat, part), whole.narrow(0, 60, 30).narrow(1, 7, 100)));
    EXPECT_THROW(matrix.dequantize(at::kFloat, {.row = 100, .rows = 5, .columns = 131}), Error);
  }
}

TEST(Nf4Matrix, HasZerosForInputsThatAPartLacks) {
  for (const bool transposed : {false, true}) {
    const Nf4Matrix inner = fused(131, false, transposed), matrix(inner.parts(), 150);
    const at::Tensor w = at::constant_pad_nd(inner.dequantize(at::kDouble), {0, 19});
    EXPECT_TRUE(at::equal(matrix.dequantize(at::kDouble), w));
    EXPECT_TRUE(matrix.dequantize(at::kDouble, {.rows = 104, .column = 140, .columns = 10}).eq(0).all().item<bool>());
    const at::Tensor x = normal({3, 150}, 1), dy = normal({3, 104}, 2);
    expect_close(matrix.multiply(x), at::linear(x, w), at::kDouble, 150, "y");
    expect_close(matrix.input_gradient(dy), at::mm(dy, w), at::kDouble, 104, "dx");
    EXPECT_THROW(Nf4Matrix(inner.parts(), 130), Error);
  }
}

TEST(Nf4Matrix, ReportsItsOperations) {
  const Nf4Matrix matrix = fused(64, true, false);
  const tensor::FlopCount count;
  matrix.multiply(at::ones({3, 64}));
  EXPECT_EQ(count.total(), 2.0 * 3 * 64 * 104);
  matrix.input_gradient(at::ones({3, 104}));
  EXPECT_EQ(count.total(), 2 * 2.0 * 3 * 64 * 104);
}

TEST(Nf4Matrix, ComputesSizesOnMeta) {
  const Nf4Weight weight = quantize_nf4(at::ones({8, 64}, at::TensorOptions(at::kMeta)), {});
  const Nf4Matrix matrix({weight});
  const at::TensorOptions meta(at::kMeta);
  EXPECT_EQ(matrix.multiply(at::empty({5, 64}, meta)).sizes(), (std::vector<int64_t>{5, 8}));
  EXPECT_EQ(matrix.input_gradient(at::empty({2, 5, 8}, meta)).sizes(), (std::vector<int64_t>{2, 5, 64}));
  EXPECT_TRUE(matrix.dequantize(at::kBFloat16).is_meta());
}

TEST(Nf4Matrix, HasNoRows) {
  const Nf4Matrix matrix = fused(64, true, false);
  EXPECT_EQ(matrix.multiply(at::empty({0, 64})).sizes(), (std::vector<int64_t>{0, 104}));
  EXPECT_EQ(matrix.input_gradient(at::empty({0, 104})).sizes(), (std::vector<int64_t>{0, 64}));
}

TEST(Nf4Matrix, RefusesOtherShapes) {
  const Nf4Matrix matrix = fused(64, true, false);
  EXPECT_THROW(matrix.multiply(at::ones({3, 65})), Error);
  EXPECT_THROW(matrix.multiply(at::ones({3, 64}), at::ones({3})), Error);
  EXPECT_THROW(matrix.input_gradient(at::ones({3, 64})), Error);
  EXPECT_THROW(Nf4Matrix({}), Error);
  EXPECT_THROW(Nf4Matrix({quantize_nf4(at::ones({2, 64}), {}), quantize_nf4(at::ones({2, 32}), {})}), Error);
  EXPECT_THROW(
      Nf4Matrix({quantize_nf4(at::ones({64, 64}), {true, false}), quantize_nf4(at::ones({64, 64}), {true, true})}),
      Error);
}

}  // namespace
}  // namespace colossal::ops::nf4_matrix_test
