// A weight in codes that is multiplied with by LibTorch's operators: on accelerators, and in dtypes for which there are
// no kernels of our own (ops/prepacked_matrix.h).
//
//   const ops::CodedMatrix w(ops::round_to_codes(weight, {.bits = 4, .group = 128}), x.options());
//   const at::Tensor y = w.multiply(x, bias);                                                     // [..., out]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/ops/group_codes.h"

namespace colossal::ops {

/// Numbers:       of groups, x as it is times the numbers that the codes stand for, in the dtype of x. Where the device
///                runs them (device_operators.h): of 4 bits in bf16, LibTorch's _weight_int4pack_mm, whose scales and
///                minima are bf16; of 8 bits of floating point _scaled_mm, for which each row of x becomes such codes,
///                too, so that what a row is multiplied to does not depend on the rows beside it.
/// Memory:        bits / 8 bytes a number and 4 bytes a group and output (8 with minima), of _weight_int4pack_mm 4;
///                of floating point 1 and 4 an output. Without an operator that reads codes the weight is there in the
///                dtype of x while it is multiplied with.
/// Thread safety: multiply() by any threads.
class CodedMatrix {
 public:
  /// `options`: device and dtype of what will be multiplied, any floating dtype. Errors: those of GroupCodes::check().
  CodedMatrix(const GroupCodes& codes, const at::TensorOptions& options);
  /// 8 bits of floating point (e4m3), a scale an output (row_codes.h). weight [out, in]. Errors ("quantization"):
  /// numbers that are not finite.
  CodedMatrix(const at::Tensor& weight, const at::TensorOptions& options);

  /// x [..., in], `bias` [out] of its dtype or undefined -> [..., out].
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias = {}) const;
  int64_t bytes() const;

 private:
  at::Tensor values(at::ScalarType type) const;

  int64_t inputs_, group_ = 0;
  at::Tensor codes_;  // of groups uint8 [out, padded (/ 2 of 4 bits)]; e4m3 [out, in]; or as operators want them
  at::Tensor scales_, minima_;  // fp32 [out, groups], minima of all but floating point; of that [out]
  at::Tensor for_int4_;         // bf16 [groups, out, 2]: scales and what codes of 8 stand for, for _weight_int4pack_mm
  int64_t bits_;
};

/// bf16 [groups, out, 2], as _weight_int4pack_mm reads them: (code - 8) * first + second.
at::Tensor int4_scales_and_zeros(const GroupCodes& codes);

}  // namespace colossal::ops
