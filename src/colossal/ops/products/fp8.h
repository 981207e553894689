// 8-bit floating point (Micikevicius et al. 2022, arXiv:2209.05433): quantization, scales, dequantization, and matrix
// products with one scale per operand (LibTorch's _scaled_mm) on hardware that multiplies 8-bit values. If the hardware
// cannot, or the sizes do not fit, use dequantized values: exact, not fast. No autograd.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

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

// Products on machines that multiply 8-bit values.
//
//   const ops::Scaled a{ops::quantize(x, ops::Fp8::E4m3, x_scale), x_scale}, b{...};
//   if (ops::multiplies_scaled(x, x.size(1), weight.size(0))) y = ops::scaled_nt(a, b, bias, x.scalar_type());

/// A matrix quantized by ops::quantize(): its values are codes / scale.
struct Scaled {
  at::Tensor codes;  ///< e4m3 or e5m2, a matrix
  at::Tensor scale;  ///< fp32, one element
};

/// Returns true if the device of `like` computes the products below with results of its dtype. Requirements: the device
/// runs DeviceOperator::ScaledProduct; `inner` and `columns` of [rows, inner] [inner, columns] are multiples of 16; the
/// dtype is fp32 or bf16.
/// See: checks of _scaled_mm_out_cuda in PyTorch's aten/src/ATen/native/cuda/ScaledBlas.cpp, and cuBLAS's documentation
///      of cublasLtMatmul, "narrow precision": the first operand is row-major, the second column-major.
bool multiplies_scaled(const at::Tensor& like, int64_t inner, int64_t columns);

/// Products in `type`, without autograd; sums are fp32. One operand at most may be e5m2 (a rule of cuBLAS). Operands in
/// another layout than cuBLAS reads are copied, one byte per element. The host does not wait, because scales stay on
/// the device. Each product reports its 2 M N K operations (tensor::FlopCount).
/// Returns A Bt + bias: [M,N].
at::Tensor scaled_nt(const Scaled& a /*[M,K]*/, const Scaled& b /*[N,K]*/, const at::Tensor& bias /*[N] or undefined*/,
                     at::ScalarType type);
/// Returns A B: [M,N].
at::Tensor scaled_nn(const Scaled& a /*[M,K]*/, const Scaled& b /*[K,N]*/, at::ScalarType type);
/// Returns At B: [M,N]. If `sum` is given, the product is computed in its dtype and added to it in place.
at::Tensor scaled_tn(const Scaled& a /*[K,M]*/, const Scaled& b /*[K,N]*/, at::ScalarType type, at::Tensor sum = {});

}  // namespace colossal::ops
