// Matrix products of 8-bit values on hardware that multiplies them, with one scale per operand (LibTorch's _scaled_mm).
// If the hardware cannot, or the sizes do not fit, use dequantized values (ops/products/fp8.h).
//
//   const ops::Scaled a{ops::quantize(x, ops::Fp8::E4m3, x_scale), x_scale}, b{...};
//   if (ops::multiplies_scaled(x, x.size(1), weight.size(0))) y = ops::scaled_nt(a, b, bias, x.scalar_type());
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::ops {

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
