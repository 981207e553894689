// 8-bit floating point (Micikevicius et al. 2022, arXiv:2209.05433): codes, scales, and the numbers that codes stand
// for, with which machines compute that have no arithmetic of 8 bits: exact, not fast. Those that have it:
// ops/scaled_product.h. No autograd.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

enum class Fp8 {
  E4m3,  ///< 4 bits of exponent, 3 of mantissa: up to 448, normal from 2^-6, steps of 2^-9 below; no infinity ("fn").
         ///< For values
  E5m2,  ///< 5 and 2: up to 57344, normal from 2^-14, steps of 2^-16 below. For gradients
};
at::ScalarType dtype_of(Fp8 format);
double largest(Fp8 format);

/// max|x|: 0-dim fp32 on the device of x, 0 for no elements, not finite if any element is not. x: fp64, fp32, bf16.
at::Tensor largest_magnitude(const at::Tensor& x);

/// The factor that brings `amax` to 2^-margin of the largest number: largest / (2^margin max(amax, 1e-12)), fp32,
/// elementwise. What was scaled by that of an amax that is not finite comes back as NaN, all of it.
at::Tensor scale_of(const at::Tensor& amax, Fp8 format, double margin = 0);
/// The largest power of two not above `scale`: with it scaling itself rounds nothing, so that numbers of the format's
/// precision survive as they are, and what comes back is exact in bf16 too. It costs less than one of the format's
/// exponents. Shapes: any, fp32.
at::Tensor power_of_two_below(const at::Tensor& scale);

/// Codes of x * scale, rounded to nearest, ties to even; beyond the largest number (infinity too) that one, as hardware
/// converts; NaN stays NaN. Products with the scale are made in fp32 (of fp64: in fp64, then fp32).
/// Shapes: x any, fp64, fp32 or bf16; scale fp32, broadcast over x.
at::Tensor quantize(const at::Tensor& x, Fp8 format, const at::Tensor& scale);
/// codes / scale, made in fp32 (for fp64: in fp64) and rounded to `dtype`.
/// Shapes: codes of either format, or int8; scale as in quantize().
at::Tensor dequantize(const at::Tensor& codes, const at::Tensor& scale, at::ScalarType dtype);

}  // namespace colossal::ops
