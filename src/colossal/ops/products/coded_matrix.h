// A quantized weight that LibTorch's operators multiply. It serves accelerators, and dtypes for which we have no
// kernels (ops/products/prepacked_matrix.h).
//
//   const ops::CodedMatrix w(ops::round_to_codes(weight, {.bits = 4, .group = 128}), x.options());
//   const at::Tensor y = w.multiply(x, bias);                                                     // [..., out]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/ops/products/group_codes.h"

namespace colossal::ops {

/// Numbers:       with groups, x times the values that the codes stand for, in the dtype of x. If the device runs them
///                (ops/device/operators.h), faster operators are used. For 4 bits and bf16 that is LibTorch's
///                _weight_int4pack_mm; its scales and minima are bf16. For 8-bit floating point it is _scaled_mm; each
///                row of x is quantized too, row by row, so that a row's result does not depend on the other rows.
/// Memory:        bits / 8 bytes per element and 8 bytes per group and output, with or without minima; 4 instead of 8
///                for _weight_int4pack_mm. Floating point takes 1 byte per element and 4 per output. Without an
///                operator that reads codes, the dequantized weight exists in the dtype of x during a product. It is
///                computed through an fp32 copy (fp64 for fp64).
/// Thread safety: any threads may call multiply().
class CodedMatrix {
 public:
  /// `options` gives the device and dtype of the tensors to multiply; any floating dtype. Errors: as for
  /// GroupCodes::check().
  CodedMatrix(const GroupCodes& codes, const at::TensorOptions& options);
  /// Quantizes weight [out, in] to 8-bit floating point (e4m3) with one scale per output (row_codes.h). Errors
  /// ("quantization"): the weight has elements that are not finite.
  CodedMatrix(const at::Tensor& weight, const at::TensorOptions& options);

  /// Returns x weightT + bias -> [..., out]. x is [..., in], `bias` [out] of its dtype or undefined.
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias = {}) const;
  int64_t bytes() const;

 private:
  at::Tensor values(at::ScalarType type) const;

  int64_t inputs_, group_ = 0;
  // uint8 [out, padded], 4 bits: [out, padded / 2]; e4m3 [out, in]; or in the layout of the operator
  at::Tensor codes_;
  at::Tensor scales_, minima_;  // fp32 [out, groups]; e4m3: scales [out], no minima
  at::Tensor for_int4_;         // bf16 [groups, out, 2] for _weight_int4pack_mm: scales, and the value of code 8
  int64_t bits_;
};

/// Returns scales and zero points, bf16 [groups, out, 2], in the form that _weight_int4pack_mm reads. A weight is
/// (code - 8) * first + second.
at::Tensor int4_scales_and_zeros(const GroupCodes& codes);

}  // namespace colossal::ops
