// A quantized weight that LibTorch's operators multiply. It serves accelerators, and dtypes for which we have no
// kernels (ops/products/prepacked_matrix.h).
//
//   const ops::CodedMatrix w(ops::round_to_codes(weight, {.bits = 4, .group = 128}), x.options());
//   const at::Tensor y = w.multiply(x, bias);                                                     // [..., out]
//   const at::Tensor dx = w.input_gradient(dy);                                                   // [..., in]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/ops/products/group_codes.h"

namespace colossal::ops {

/// Numbers:       with groups, x times the values that the codes stand for, in the dtype of x. If the device runs them
///                (ops/device/operators.h), faster operators are used. For 4 bits and bf16 that is LibTorch's
///                _weight_int4pack_mm; its scales and minima are bf16. For 8-bit floating point it is _scaled_mm; each
///                row of x is quantized too, row by row, so that a row's result does not depend on the other rows.
/// Memory:        bits / 8 bytes per element and 4 bytes per group and output, 8 with minima; 4 for
///                _weight_int4pack_mm. Floating point takes 1 byte per element and 4 per output. A product without an
///                operator that reads codes decodes a slice at a time: 2^20 elements or 128 rows or columns, whichever
///                is more. It decodes outputs in multiply() and inputs in input_gradient(), so a sum is never split.
/// Decoding:      in fp32 (fp64 for fp64), rounded once to the dtype of x, on the threads of the CPU; by LibTorch's
///                operators on other devices. The values do not depend on slices and threads.
/// Thread safety: any threads may multiply.
class CodedMatrix {
 public:
  /// `options` gives the device and dtype of the tensors to multiply; any floating dtype. `decodes`: true = codes are
  /// never in the layout of an operator, as input_gradient() and rows() require. Errors: as for GroupCodes::check().
  CodedMatrix(const GroupCodes& codes, const at::TensorOptions& options, bool decodes = false);
  /// Quantizes weight [out, in] to 8-bit floating point (e4m3) with one scale per output (row_codes.h). Errors
  /// ("quantization"): the weight has elements that are not finite.
  CodedMatrix(const at::Tensor& weight, const at::TensorOptions& options);

  /// Returns a matrix of the same sizes on meta, for a weight whose codes are not read.
  static CodedMatrix on_meta(int64_t outputs, int64_t inputs, int64_t bits, int64_t group, bool minima);

  /// Returns x weightT + bias -> [..., out], without autograd. x is [..., in], `bias` [out] of its dtype or undefined.
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias = {}) const;
  /// Returns dy weight -> [..., in], without autograd: the gradient of x. dy is [..., out] or has fewer outputs, the
  /// first ones. Errors ("quantization"): codes in the layout of an operator.
  at::Tensor input_gradient(const at::Tensor& dy) const;
  /// Returns the values of `count` rows from `first` on: [count, in] in `type`. Errors: as input_gradient().
  at::Tensor rows(int64_t first, int64_t count, at::ScalarType type) const;
  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  int64_t bytes() const;

 private:
  CodedMatrix() = default;
  at::Tensor decoded(int64_t row, int64_t rows, int64_t column, int64_t columns, at::ScalarType rounds_to,
                     at::ScalarType type) const;
  void check_decodes() const;

  int64_t outputs_ = 0, inputs_ = 0, group_ = 0;
  // uint8 [out, padded], 4 bits: [out, padded / 2]; e4m3 [out, in]; or in the layout of the operator
  at::Tensor codes_;
  at::Tensor scales_, minima_;  // fp32 [out, groups]; minima undefined = none. e4m3: scales [out], no minima
  at::Tensor for_int4_;         // bf16 [groups, out, 2] for _weight_int4pack_mm: scales, and the value of code 8
  int64_t bits_ = 8;
};

/// Returns scales and zero points, bf16 [groups, out, 2], in the form that _weight_int4pack_mm reads. A weight is
/// (code - 8) * first + second.
at::Tensor int4_scales_and_zeros(const GroupCodes& codes);

}  // namespace colossal::ops
