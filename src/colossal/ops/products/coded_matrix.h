// A quantized weight that LibTorch's operators multiply. It serves accelerators, and dtypes for which we have no
// kernels (ops/products/prepacked_matrix.h).
//
//   const ops::CodedMatrix w(ops::round_to_codes(weight, {.bits = 4, .group = 128}), x.options());
//   const at::Tensor y = w.multiply(x, bias);                                                     // [..., out]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "colossal/ops/products/group_codes.h"
#include "colossal/ops/products/group_weight.h"

namespace colossal::ops {

/// Numbers:       with groups, x times the values that the codes stand for, in the dtype of x. If the device runs them
///                (ops/device/operators.h), faster operators are used. For 4 bits and bf16 that is LibTorch's
///                _weight_int4pack_mm; its scales and minima are bf16. For 8-bit floating point it is _scaled_mm; each
///                row of x is quantized too, row by row, so that a row's result does not depend on the other rows.
/// Memory:        that of GroupWeight; 4 bytes per group and output for _weight_int4pack_mm. Floating point takes 1
///                byte per element and 4 per output. A product without an operator that reads codes decodes a slice of
///                outputs at a time: 2^20 elements or 128 rows, whichever is more.
/// Thread safety: any threads may multiply.
class CodedMatrix {
 public:
  /// `options` gives the device and dtype of the tensors to multiply; any floating dtype. Errors: as for
  /// GroupCodes::check().
  CodedMatrix(const GroupCodes& codes, const at::TensorOptions& options);
  /// Quantizes weight [out, in] to 8-bit floating point (e4m3) with one scale per output (row_codes.h). Errors
  /// ("quantization"): the weight has elements that are not finite.
  CodedMatrix(const at::Tensor& weight, const at::TensorOptions& options);

  /// Returns x weightT + bias -> [..., out], without autograd. x is [..., in], `bias` [out] of its dtype or undefined.
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias = {}) const;
  int64_t bytes() const;

 private:
  at::Tensor decoded(const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to) const;

  int64_t outputs_, inputs_, group_ = 0;
  std::optional<GroupWeight> weight_;  // with groups, unless it is in the layout of the operator
  at::Tensor codes_;                   // e4m3 [out, in], or in the layout of the operator
  at::Tensor scales_;                  // e4m3: fp32 [out]
  at::Tensor for_int4_;                // bf16 [groups, out, 2] for _weight_int4pack_mm: scales, and the value of code 8
};

/// Returns scales and zero points, bf16 [groups, out, 2], in the form that _weight_int4pack_mm reads. A weight is
/// (code - 8) * first + second.
at::Tensor int4_scales_and_zeros(const GroupCodes& codes);

}  // namespace colossal::ops
