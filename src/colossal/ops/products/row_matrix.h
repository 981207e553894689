// The weight of a frozen linear layer in bf16, or in 8 bits with a scale per row: y = x Wt and dx = dy W, without a
// copy of W in the dtype of x.
//
//   const ops::RowCodes coded = ops::encode_rows(weight, at::kChar);
//   const ops::RowMatrix w(coded.codes, coded.scales);
//   const at::Tensor y = w.multiply(x, bias), dx = w.input_gradient(dy);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/ops/products/nf4_weight.h"

namespace colossal::ops {

/// A matrix [out, in] whose elements are `numbers`, times the scale of their row if there are scales.
///
/// Numbers: those of the same products with dequantize(dtype of x), except for the order of sums. A scaled element is
///          number * scale in fp32, rounded once. No gradient of W exists.
/// Dtypes:  x and dy in fp64, fp32, bf16 or fp16.
/// Cost and memory: those of PlacedMatrix; LibTorch's operators decode.
/// Thread safety: any threads may multiply.
class RowMatrix {
 public:
  /// `numbers` [out, in] in any dtype; `scales` fp32 [out], or undefined. Errors ("row_matrix"): other shapes.
  explicit RowMatrix(at::Tensor numbers, at::Tensor scales = {});

  int64_t outputs() const { return numbers_.size(0); }
  int64_t inputs() const { return numbers_.size(1); }

  /// Returns x Wt + bias [..., out], without autograd. x is [..., in], `bias` [out] of its dtype or undefined.
  /// Errors ("row_matrix"): other shapes.
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias = {}) const;
  /// Returns dy W [..., in], without autograd. dy is [..., out]. Errors ("row_matrix"): other shapes.
  at::Tensor input_gradient(const at::Tensor& dy) const;
  /// Returns the values [out, in], or those of a part whose row_step is 1, in `type`: a new tensor.
  at::Tensor dequantize(at::ScalarType type) const;
  at::Tensor dequantize(at::ScalarType type, const MatrixPart& part) const;

 private:
  at::Tensor decoded(const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to) const;

  at::Tensor numbers_, scales_;
};

}  // namespace colossal::ops
