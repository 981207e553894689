// Selection of the kernels for a tensor's element type.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/kernels.h"
#include "colossal/tensor/accelerator.h"

namespace colossal::ops {

/// Returns true for tensors that the CPU kernels accept: CPU, fp64, fp32 or bf16. All others go to ATen.
inline bool has_kernel(const at::Tensor& x) {
  const auto type = x.scalar_type();
  return x.is_cpu() && (type == at::kDouble || type == at::kFloat || type == at::kBFloat16);
}

/// True for accelerators, where LibTorch's fused operators run. Meta is no accelerator: there the references compute
/// the sizes.
using tensor::is_accelerator;

/// Number of elements per call of tensor operators that allocate several tensors as large as their input.
constexpr int64_t kSliceElements = int64_t{1} << 22;

/// Returns the dtype in which kernels compute: fp64 for fp64, else fp32.
inline at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Calls body(T()) with T = double, float or Bf16. Requires has_kernel(x).
template <class Body>
void with_element_type(const at::Tensor& x, Body&& body) {
  switch (x.scalar_type()) {
    case at::kDouble:
      return body(double());
    case at::kFloat:
      return body(float());
    default:
      return body(Bf16());
  }
}

/// Returns the dtype of `x` for kernels that also read or write narrower buffers than fp32. Returns None for other
/// dtypes and for an undefined tensor.
inline Narrow narrow_type(const at::Tensor& x) {
  if (!x.defined()) return Narrow::None;
  return x.scalar_type() == at::kBFloat16 ? Narrow::Bf16 : x.scalar_type() == at::kHalf ? Narrow::Half : Narrow::None;
}

/// Returns a pointer to the first element of a tensor whose dtype is T's; null for an undefined one.
template <class T>
T* pointer(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}

}  // namespace colossal::ops
