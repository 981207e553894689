// 8-bit floating point (Micikevicius et al. 2022, arXiv:2209.05433): quantization, scales, and dequantization. Machines
// without 8-bit arithmetic compute with dequantized values: exact, not fast. Machines that have it use
// ops/products/scaled_product.h. No autograd.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

enum class Fp8 {
  /// 4 bits of exponent, 3 of mantissa, for values: up to 448, normal from 2^-6, steps of 2^-9 below; no infinity
  /// ("fn")
  E4m3,
  E5m2,  ///< 5 bits of exponent, 2 of mantissa, for gradients: up to 57344, normal from 2^-14, steps of 2^-16 below
};
at::ScalarType dtype_of(Fp8 format);
double largest(Fp8 format);

/// Returns max|x|: 0-dim fp32 on the device of x. It is 0 if x has no elements, and not finite if any element is not.
/// x: fp64, fp32, bf16.
at::Tensor largest_magnitude(const at::Tensor& x);

/// Returns the factor that scales `amax` to 2^-margin of the largest number: largest / (2^margin max(amax, 1e-12)),
/// fp32, elementwise. If amax is not finite, everything scaled by the factor dequantizes to NaN.
at::Tensor scale_of(const at::Tensor& amax, Fp8 format, double margin = 0);
/// Returns the largest power of two not above `scale`. Scaling by it rounds nothing: values with the format's precision
/// do not change, and dequantized values are exact in bf16 too. Less than one power of two of the format's range is
/// lost. Shapes: any, fp32.
at::Tensor power_of_two_below(const at::Tensor& scale);

/// Returns the quantized values of x * scale, rounded to nearest, ties to even. Values beyond the largest number
/// (infinity too) become the largest number, as hardware converts; NaN stays NaN. Products with the scale are computed
/// in fp32 (for fp64: in fp64, then fp32). Shapes: x any, fp64, fp32 or bf16; scale fp32, broadcast over x.
at::Tensor quantize(const at::Tensor& x, Fp8 format, const at::Tensor& scale);
/// Returns codes / scale, computed in fp32 (for fp64: in fp64) and rounded to `dtype`. Shapes: codes of either format,
/// or int8; scale as in quantize().
at::Tensor dequantize(const at::Tensor& codes, const at::Tensor& scale, at::ScalarType dtype);

}  // namespace colossal::ops
