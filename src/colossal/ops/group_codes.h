// Weights in codes of 8 or 4 bits, with a scale a group of inputs: what methods of quantisation make, what files of
// quantised weights hold, and what products are packed from (prepacked_matrix.h).
//
//   const ops::GroupCodes codes = ops::round_to_codes(weight, {.bits = 4, .group = 128});
//   const at::Tensor near = codes.values();                                                   // [out, in] fp32
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::ops {

/// Quantized values of a weight [out, in]. With group g = k / group, the element at (n, k) is
///   scales[n, g] * (code - 2^(bits - 1))       if there are no minima,
///   scales[n, g] * code + minima[n, g]         if there are.
struct GroupCodes {
  int64_t bits = 8;     ///< 8 or 4
  int64_t group = 128;  ///< inputs that share a scale: a multiple of 8; the last may have fewer
  at::Tensor codes;     ///< uint8 [out, in], below 2^bits; of 8 bits without minima above 0
  at::Tensor scales;    ///< fp32 [out, ceil(in / group)]
  at::Tensor minima;    ///< the same shape, or undefined

  int64_t outputs() const { return codes.size(0); }
  int64_t inputs() const { return codes.size(1); }
  int64_t groups() const { return (inputs() + group - 1) / group; }
  /// The numbers that it stands for, fp32 [out, in].
  at::Tensor values() const;
  /// Errors ("quantization"): bits, groups, shapes and dtypes other than those above; minima of 8 bits; tensors that
  ///                          are not on the CPU. Codes are not looked at.
  void check() const;
};

struct RoundingOptions {
  int64_t bits = 8;
  int64_t group = 128;
  bool minima = false;  ///< 4 bits: from the smallest to the largest number of a group, instead of about zero
  /// Minima are -zero * scale, zero a whole number of 0 to 15, as files of GPTQ and AWQ can say it: packing rounds them
  bool whole_zeros = false;
};

/// Each group rounded to nearest by itself ("RTN"): its largest magnitude gets the largest code. Scales are numbers
/// that binary16 has, times one power of two for the whole matrix, so that packing rounds nothing.
/// weight [out, in] fp32 or bf16 on the CPU. Errors ("quantization"): other weights, bits or groups; numbers that are
/// not finite.
GroupCodes round_to_codes(const at::Tensor& weight, const RoundingOptions& options);

/// The power of two by which `scales` are divided before they are rounded to binary16, so that the largest is near its
/// upper end and small ones keep their digits.
float binary16_factor(const at::Tensor& scales);
/// `scales` as they come back from binary16.
at::Tensor through_binary16(const at::Tensor& scales);

}  // namespace colossal::ops
