// Products with weights that are stored as codes: they must equal the products of the decoded values.
#include "colossal/ops/products/placed_matrix.h"

#include "colossal/base/error.h"
#include "colossal/tensor/flops.h"
#include "ops/compare.h"

namespace colossal::ops::placed_matrix_test {
namespace {

constexpr int64_t kOutputs = 104;

/// The form of the weights of a matrix.
struct Form {
  bool is_nf4 = true;
  bool double_quantized = false, transposed = false;
  RoundingOptions groups{};
};

std::vector<Form> forms() {
  return {{.double_quantized = true},
          {.transposed = true},
          {.is_nf4 = false, .groups = {.bits = 8, .group = 32}},
          {.is_nf4 = false, .groups = {.bits = 4, .group = 40, .minima = true}}};
}

PlacedWeight coded(const at::Tensor& weight, const Form& form, int64_t row, int64_t column = 0) {
  if (!form.is_nf4) return {GroupWeight(round_to_codes(weight.to(at::kFloat), form.groups)), row, column};
  return {quantize_nf4(form.transposed ? weight.t() : weight, {form.double_quantized, form.transposed}), row, column};
}

/// A matrix of three weights of different sizes, as q, k and v of a folder, perhaps with inputs of padding.
PlacedMatrix fused(int64_t inputs, const Form& form, int64_t padding = 0) {
  std::vector<PlacedWeight> weights;
  int64_t row = 0;
  for (const int64_t outputs : {70, 1, 33}) {
    weights.push_back(coded(normal({outputs, inputs}, static_cast<uint64_t>(outputs)), form, row));
    row += outputs;
  }
  return {kOutputs, inputs + padding, std::move(weights)};
}

TEST(PlacedMatrix, MultipliesDecodedValues) {
  for (const int64_t inputs : {64, 131, 5})
    for (const Form& form : forms())
      for (const at::ScalarType type : float_types())
        for (const auto set : runnable_instruction_sets()) {
          const InstructionSetScope scope(set);
          const PlacedMatrix matrix = fused(inputs, form);
          const at::Tensor w = matrix.dequantize(type).to(at::kDouble);
          const at::Tensor x = normal({2, 3, inputs}, 2, type), bias = normal({kOutputs}, 3, type);
          const std::string what = std::string(name(set)) + " " + at::toString(type) + " " + std::to_string(inputs);
          // The product is rounded before the bias is added.
          expect_close(matrix.multiply(x.to(type), bias.to(type)), at::linear(x, w, bias), type, inputs, what, 1);
          const at::Tensor dy = normal({2, 3, kOutputs}, 4, type);
          expect_close(matrix.input_gradient(dy.to(type)), at::matmul(dy, w), type, kOutputs, what);
        }
}

// More outputs and inputs than a slice has, and none that a slice divides. A group may be longer than a slice.
TEST(PlacedMatrix, MultipliesInSlices) {
  std::vector<Form> all = forms();
  all.push_back({.is_nf4 = false, .groups = {.bits = 4, .group = 5008}});
  for (const Form& form : all)
    for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{4700, 70}, {70, 4700}, {300, 5000}}) {
      const PlacedMatrix matrix(outputs, inputs, {coded(normal({outputs, inputs}, 1), form, 0)});
      const at::Tensor w = matrix.dequantize(at::kFloat).to(at::kDouble);
      const at::Tensor x = normal({3, inputs}, 2, at::kFloat), dy = normal({3, outputs}, 3, at::kFloat);
      expect_close(matrix.multiply(x.to(at::kFloat)), at::linear(x, w), at::kFloat, inputs, "y");
      expect_close(matrix.input_gradient(dy.to(at::kFloat)), at::mm(dy, w), at::kFloat, outputs, "dx");
    }
}

// dx is the gradient that LibTorch computes for the decoded weight.
TEST(PlacedMatrix, HasTheGradientOfTheInput) {
  const PlacedMatrix matrix = fused(96, {});
  const at::Tensor x = normal({5, 96}, 5).requires_grad_(true), dy = normal({5, kOutputs}, 6);
  at::linear(x, matrix.dequantize(at::kDouble)).backward(dy);
  expect_close(matrix.input_gradient(dy), x.grad(), at::kDouble, kOutputs, "dx");
}

TEST(PlacedMatrix, DecodesParts) {
  for (const Form& form : forms()) {
    const PlacedMatrix matrix = fused(131, form);
    const at::Tensor whole = matrix.dequantize(at::kFloat);
    for (const int64_t column : {7, 64, 100})
      for (const int64_t columns : {1, 20, 31}) {
        const MatrixPart part{.row = 60, .rows = 30, .column = column, .columns = columns};
        EXPECT_TRUE(at::equal(matrix.dequantize(at::kFloat, part), whole.narrow(0, 60, 30).narrow(1, column, columns)));
      }
    EXPECT_THROW(matrix.dequantize(at::kFloat, {.row = 100, .rows = 5, .columns = 131}), Error);
  }
}

TEST(PlacedMatrix, HasZerosBesideItsWeights) {
  for (const Form& form : forms()) {
    const PlacedMatrix inner = fused(131, form), matrix = fused(131, form, 19);
    const at::Tensor w = at::constant_pad_nd(inner.dequantize(at::kDouble), {0, 19});
    EXPECT_TRUE(at::equal(matrix.dequantize(at::kDouble), w));
    EXPECT_TRUE(
        matrix.dequantize(at::kDouble, {.rows = kOutputs, .column = 140, .columns = 10}).eq(0).all().item<bool>());
    const at::Tensor x = normal({3, 150}, 1), dy = normal({3, kOutputs}, 2);
    expect_close(matrix.multiply(x), at::linear(x, w), at::kDouble, 150, "y");
    expect_close(matrix.input_gradient(dy), at::mm(dy, w), at::kDouble, kOutputs, "dx");
  }
}

// Weights of every form in one matrix, two of them beside each other.
TEST(PlacedMatrix, JoinsWeightsOfSeveralForms) {
  std::vector<PlacedWeight> weights;
  const std::vector<Form> all = forms();
  for (size_t i = 0; i < all.size(); ++i)
    weights.push_back(
        coded(normal({30, 50}, i), all[i], static_cast<int64_t>(i / 2) * 30, static_cast<int64_t>(i % 2) * 50));
  std::vector<at::Tensor> values;
  for (const PlacedWeight& one : weights)
    values.push_back(PlacedMatrix(30, 50, {{one.weight}}).dequantize(at::kDouble).contiguous());
  const at::Tensor w = at::cat({at::cat({values[0], values[1]}, 1), at::cat({values[2], values[3]}, 1)});
  for (const bool turned : {false, true}) {
    if (turned) std::reverse(weights.begin(), weights.end());
    const PlacedMatrix matrix(60, 100, weights);
    EXPECT_TRUE(at::equal(matrix.dequantize(at::kDouble), w));
    const at::Tensor x = normal({3, 100}, 11), dy = normal({3, 60}, 12);
    expect_close(matrix.multiply(x), at::linear(x, w), at::kDouble, 100, "y");
    expect_close(matrix.input_gradient(dy), at::mm(dy, w), at::kDouble, 60, "dx");
  }
}

TEST(PlacedMatrix, ReportsItsOperations) {
  const PlacedMatrix matrix = fused(64, {});
  const tensor::FlopCount count;
  matrix.multiply(at::ones({3, 64}));
  EXPECT_EQ(count.total(), 2.0 * 3 * 64 * kOutputs);
  matrix.input_gradient(at::ones({3, kOutputs}));
  EXPECT_EQ(count.total(), 2 * 2.0 * 3 * 64 * kOutputs);
}

TEST(PlacedMatrix, ComputesSizesOnMeta) {
  const at::TensorOptions meta(at::kMeta);
  const GroupForm groups{.rows = 8, .columns = 64, .bits = 4, .group = 16};
  for (const PlacedWeight& weight :
       {PlacedWeight{quantize_nf4(at::ones({8, 64}, meta), {})},
        PlacedWeight{GroupWeight(groups, at::empty({groups.bytes()}, meta.dtype(at::kByte)))}}) {
    const PlacedMatrix matrix(8, 64, {weight});
    EXPECT_EQ(matrix.multiply(at::empty({5, 64}, meta)).sizes(), (std::vector<int64_t>{5, 8}));
    EXPECT_EQ(matrix.input_gradient(at::empty({2, 5, 8}, meta)).sizes(), (std::vector<int64_t>{2, 5, 64}));
    EXPECT_TRUE(matrix.dequantize(at::kBFloat16).is_meta());
  }
}

TEST(PlacedMatrix, MultipliesNoRows) {
  const PlacedMatrix matrix = fused(64, {});
  EXPECT_EQ(matrix.multiply(at::empty({0, 64})).sizes(), (std::vector<int64_t>{0, kOutputs}));
  EXPECT_EQ(matrix.input_gradient(at::empty({0, kOutputs})).sizes(), (std::vector<int64_t>{0, 64}));
}

TEST(PlacedMatrix, RefusesOtherShapes) {
  const PlacedMatrix matrix = fused(64, {});
  EXPECT_THROW(matrix.multiply(at::ones({3, 65})), Error);
  EXPECT_THROW(matrix.multiply(at::ones({3, 64}), at::ones({3})), Error);
  EXPECT_THROW(matrix.input_gradient(at::ones({3, 64})), Error);
  EXPECT_THROW(PlacedMatrix(2, 64, {}), Error);
  const PlacedWeight one{quantize_nf4(at::ones({2, 64}), {})};
  EXPECT_THROW(PlacedMatrix(1, 64, {one}), Error);
  EXPECT_THROW(PlacedMatrix(2, 70, {{one.weight, 0, 7}}), Error);
}

}  // namespace
}  // namespace colossal::ops::placed_matrix_test
