// Weights quantized to 8 or 4 bits with one scale per group of inputs. Quantization methods produce them, files of
// quantized weights contain them, and prepacked_matrix.h packs them for products.
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
  int64_t group = 128;  ///< number of inputs that share a scale, a multiple of 8; the last group may be smaller
  /// uint8 [out, in], below 2^bits. PrepackedMatrix takes codes of 8 bits that are at least 1
  at::Tensor codes;
  at::Tensor scales;  ///< fp32 [out, ceil(in / group)]
  at::Tensor minima;  ///< like scales, or undefined; only for 4 bits

  int64_t outputs() const { return codes.size(0); }
  int64_t inputs() const { return codes.size(1); }
  int64_t groups() const { return (inputs() + group - 1) / group; }
  /// Returns the dequantized weight, fp32 [out, in].
  at::Tensor values() const;
  /// Errors ("quantization"): bits, groups, shapes or dtypes other than those above; minima with 8 bits; tensors that
  /// are not on the CPU. The values of codes are not checked.
  void check() const;
};

/// Form of the quantized values of a matrix, without the values.
struct CodesForm {
  bool is_nf4 = false, double_quantized = false;  ///< ops/products/nf4_weight.h
  // those of GroupCodes, unless is_nf4
  int64_t bits = 4, group = 64;
  bool minima = false;
  bool operator==(const CodesForm&) const = default;
};

struct RoundingOptions {
  int64_t bits = 8;
  int64_t group = 128;
  /// 4 bits only: codes range from a group's smallest to its largest value, 0 included; false: symmetric about zero
  bool minima = false;
  /// Makes minima = -zero * scale with an integer zero of 0 to 15, as files of GPTQ and AWQ store it. Packing then
  /// rounds the minima. Ignored without `minima`.
  bool whole_zeros = false;
};

/// Rounds each group to nearest on its own ("RTN"). Without minima the largest magnitude of a group gets the largest
/// code. Scales, and minima without whole_zeros, are binary16 values times one power of two for the whole matrix, so
/// packing does not round them. weight [out, in] is fp32 or bf16 on the CPU. Errors ("quantization"): other weights,
/// bits or groups; elements that are not finite.
GroupCodes round_to_codes(const at::Tensor& weight, const RoundingOptions& options);

/// Returns the power of two by which `scales` are divided before they are rounded to binary16. The largest is then near
/// the upper end of the range, and small ones keep their digits.
float binary16_factor(const at::Tensor& scales);
/// Returns `scales` after a round trip through binary16.
at::Tensor through_binary16(const at::Tensor& scales);

}  // namespace colossal::ops
