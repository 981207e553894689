// The weight of a frozen linear layer in NF4: y = x Wt and dx = dy W, without a copy of W in the dtype of x.
//
//   const ops::Nf4Matrix w({ops::quantize_nf4(q, {}), ops::quantize_nf4(k, {}), ops::quantize_nf4(v, {})});
//   const at::Tensor y = w.multiply(x, bias);             // [..., outputs of q, k and v]
//   const at::Tensor dx = w.input_gradient(dy);           // [..., in]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/ops/products/nf4_weight.h"

namespace colossal::ops {

struct DecodedSizes;  // ops/products/decoded_products.h

/// A matrix [out, in] whose rows one or several weights hold, one after the other: q, k and v of a folder, or the parts
/// of them that a rank has.
///
/// Numbers: those of the same products with dequantize(weight, dtype of x), except for the order of sums. No gradient
///          of W exists.
/// Dtypes:  x and dy in fp64, fp32, bf16 or fp16. If a CPU does not multiply bf16, numbers rounded to bf16 are decoded
///          as fp32.
/// Cost:    a product decodes W once, for all rows of x, slice by slice: outputs in multiply(), inputs in
///          input_gradient(). So a sum is never split. Products are those of ops/products/matmul.h, so their speed is
///          that of weights in the dtype of x, less the time to decode.
/// Memory:  Nf4Weight::bytes() and, during a product, a slice: 2^20 elements or 128 rows or columns, whichever is more.
/// Devices: kernels of each instruction set decode on the CPU, LibTorch's operators elsewhere.
/// Thread safety: any threads may multiply.
class Nf4Matrix {
 public:
  /// `inputs`: number of columns, of which those that a part lacks are zeros, the padding of a layout; 0 = those of the
  /// first part. Errors ("nf4"): no parts; parts with more inputs, another orientation or on another device.
  explicit Nf4Matrix(std::vector<Nf4Weight> parts, int64_t inputs = 0);
  /// Returns a matrix of parts that are stored one after the other in `bytes`, as views: the value of a parameter.
  /// Errors ("nf4"): the errors of Nf4Weight.
  static Nf4Matrix of(const std::vector<Nf4Form>& forms, const at::Tensor& bytes, int64_t inputs = 0);

  const std::vector<Nf4Weight>& parts() const { return parts_; }
  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }

  /// Returns x Wt + bias [..., out], without autograd. x is [..., in], `bias` [out] of its dtype or undefined.
  /// Errors ("nf4"): other shapes.
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias = {}) const;
  /// Returns dy W [..., in], without autograd: the gradient of x. dy is [..., out]. Errors ("nf4"): other shapes.
  at::Tensor input_gradient(const at::Tensor& dy) const;
  /// Returns the values [out, in] in `type`; a part has a row_step of 1. Errors ("nf4"): a part that reaches outside.
  at::Tensor dequantize(at::ScalarType type) const;
  at::Tensor dequantize(at::ScalarType type, const MatrixPart& part) const;

 private:
  at::Tensor decoded(const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to, at::Tensor& room) const;
  DecodedSizes sizes() const;

  std::vector<Nf4Weight> parts_;
  int64_t outputs_ = 0, inputs_ = 0;
  bool transposed_ = false;
};

/// Returns the number of bytes that Nf4Matrix::of() takes for these forms.
int64_t bytes_of(const std::vector<Nf4Form>& forms);

}  // namespace colossal::ops
