// Matrix products of 8-bit numbers by hardware that multiplies them, each operand scaled as a whole (LibTorch's
// _scaled_mm). Where there is none, or sizes do not fit, ops/fp8.h has the numbers that the codes stand for.
//
//   const ops::Scaled a{ops::quantize(x, ops::Fp8::E4m3, x_scale), x_scale}, b{...};
//   if (ops::multiplies_scaled(x, x.size(1), weight.size(0))) y = ops::scaled_nt(a, b, bias, x.scalar_type());
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::ops {

/// What ops::quantize() made: the numbers are codes / scale.
struct Scaled {
  at::Tensor codes;  ///< e4m3 or e5m2, a matrix
  at::Tensor scale;  ///< fp32, one number
};

/// Whether the products below are made on the device of `like` and in its dtype: it runs DeviceOperator::ScaledProduct,
/// `inner` and `columns` of [rows, inner] [inner, columns] are multiples of 16, and the dtype is fp32 or bf16.
/// See: checks of _scaled_mm_out_cuda in PyTorch's aten/src/ATen/native/cuda/ScaledBlas.cpp, and cuBLAS's documentation
///      of cublasLtMatmul, "narrow precision": the first operand lies row by row, the second column by column.
bool multiplies_scaled(const at::Tensor& like, int64_t inner, int64_t columns);

/// Products in `type`, without autograd; sums are fp32. At most one operand is e5m2, as cuBLAS demands. Operands that
/// do not lie as it reads them are copied, a byte an element. Nobody waits: scales stay on the device. Each announces
/// its 2 M N K operations (tensor::FlopCount).
/// -> [M,N] = A Bt + bias
at::Tensor scaled_nt(const Scaled& a /*[M,K]*/, const Scaled& b /*[N,K]*/, const at::Tensor& bias /*[N] or undefined*/,
                     at::ScalarType type);
/// -> [M,N] = A B
at::Tensor scaled_nn(const Scaled& a /*[M,K]*/, const Scaled& b /*[K,N]*/, at::ScalarType type);
/// -> [M,N] = At B, or added to `sum`, in whose dtype the product then is made, and there
at::Tensor scaled_tn(const Scaled& a /*[K,M]*/, const Scaled& b /*[K,N]*/, at::ScalarType type, at::Tensor sum = {});

}  // namespace colossal::ops
