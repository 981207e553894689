#include "colossal/ops/products/row_matrix.h"

#include <ATen/ATen.h>

#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/products/decoded_products.h"

namespace colossal::ops {
namespace {

constexpr const char* kRowMatrix = "row_matrix";

DecodedSizes decoded_sizes_of(const at::Tensor& numbers) {
  return {kRowMatrix, numbers.size(0), numbers.size(1), is_for_accelerator(numbers)};
}

}  // namespace

RowMatrix::RowMatrix(at::Tensor numbers, at::Tensor scales) : numbers_(std::move(numbers)), scales_(std::move(scales)) {
  require(numbers_.dim() == 2 && numbers_.numel() > 0, kRowMatrix, "a weight must be a matrix: got ", numbers_.sizes());
  require(!scales_.defined() ||
              (scales_.dim() == 1 && scales_.size(0) == numbers_.size(0) && scales_.scalar_type() == at::kFloat),
          kRowMatrix, "scales must be fp32, one for each of ", numbers_.size(0), " rows");
}

at::Tensor RowMatrix::decoded(const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to) const {
  const at::Tensor numbers = numbers_.narrow(0, part.row, part.rows).narrow(1, part.column, part.columns);
  if (!scales_.defined()) return numbers.to(rounds_to).to(type);
  at::Tensor values = numbers.to(at::kFloat).mul_(scales_.narrow(0, part.row, part.rows).unsqueeze(1));
  return values.to(rounds_to).to(type);
}

at::Tensor RowMatrix::multiply(const at::Tensor& x, const at::Tensor& bias) const {
  return multiply_decoded(x, bias, decoded_sizes_of(numbers_),
                          [&](const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to) {
                            return decoded(part, type, rounds_to);
                          });
}

at::Tensor RowMatrix::input_gradient(const at::Tensor& dy) const {
  return input_gradient_decoded(dy, decoded_sizes_of(numbers_),
                                [&](const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to) {
                                  return decoded(part, type, rounds_to);
                                });
}

at::Tensor RowMatrix::dequantize(at::ScalarType type) const {
  return dequantize(type, {.rows = outputs(), .columns = inputs()});
}

at::Tensor RowMatrix::dequantize(at::ScalarType type, const MatrixPart& part) const {
  const at::Tensor values = decoded(part, type, type);
  return values.is_alias_of(numbers_) ? values.clone() : values;
}

}  // namespace colossal::ops
