// The weight of a frozen linear layer as codes: y = x Wt and dx = dy W, without a copy of W in the dtype of x.
//
//   const ops::PlacedMatrix w(104, 64, {{ops::quantize_nf4(q, {}), 0, 0}, {ops::quantize_nf4(kv, {}), 64, 0}});
//   const at::Tensor y = w.multiply(x, bias);             // [..., outputs of q, k and v]
//   const at::Tensor dx = w.input_gradient(dy);           // [..., in]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "colossal/ops/products/group_weight.h"
#include "colossal/ops/products/nf4_weight.h"

namespace colossal::ops {

struct DecodedSizes;  // ops/products/decoded_products.h

/// A rectangle of a matrix, and its first row and column there.
struct PlacedWeight {
  std::variant<Nf4Weight, GroupWeight> weight;
  int64_t row = 0, column = 0;

  int64_t outputs() const;
  int64_t inputs() const;
};

/// A matrix [out, in] of rectangles that are stored as codes: q, k and v of a folder, or the parts of them that a rank
/// has. Elements without a rectangle are zeros, the padding of a layout.
///
/// Numbers: those of the same products with dequantize(dtype of x), except for the order of sums. No gradient of W
///          exists.
/// Dtypes:  x and dy in fp64, fp32, bf16 or fp16. If a CPU does not multiply bf16, numbers rounded to bf16 are decoded
///          as fp32.
/// Cost:    a product decodes W once, for all rows of x, slice by slice: outputs in multiply(), inputs in
///          input_gradient(). So a sum is never split. Products are those of ops/products/matmul.h, so their speed is
///          that of weights in the dtype of x, less the time to decode.
/// Memory:  the weights and, during a product, a slice: 2^20 elements or 128 rows or columns, whichever is more.
/// Devices: kernels on the CPU, LibTorch's operators elsewhere.
/// Thread safety: any threads may multiply.
class PlacedMatrix {
 public:
  /// Errors ("quantization"): no outputs or inputs; no weights; a weight that reaches outside or is on another device.
  PlacedMatrix(int64_t outputs, int64_t inputs, std::vector<PlacedWeight> weights);

  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }

  /// Returns x Wt + bias [..., out], without autograd. x is [..., in], `bias` [out] of its dtype or undefined.
  /// Errors ("quantization"): other shapes.
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias = {}) const;
  /// Returns dy W [..., in], without autograd: the gradient of x. dy is [..., out]. Errors ("quantization"): other
  /// shapes.
  at::Tensor input_gradient(const at::Tensor& dy) const;
  /// Returns the values [out, in], or those of a part whose row_step is 1, in `type`: a new tensor. Errors
  /// ("quantization"): a part that reaches outside.
  at::Tensor dequantize(at::ScalarType type) const;
  at::Tensor dequantize(at::ScalarType type, const MatrixPart& part) const;

 private:
  at::Tensor decoded(const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to, at::Tensor& room) const;
  DecodedSizes sizes() const;

  int64_t outputs_, inputs_;
  std::vector<PlacedWeight> weights_;
  at::TensorOptions options_;
  bool transposed_ = false;  ///< values are decoded by columns
  bool has_gaps_ = false;
  int64_t unit_ = 1;  ///< of the columns of slices
};

}  // namespace colossal::ops
