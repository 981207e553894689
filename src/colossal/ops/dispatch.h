// Selection of the kernels for a tensor's element type.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/kernels.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::ops {

/// Returns true for tensors that the CPU kernels accept: fp64, fp32 or bf16, on the CPU or on meta that stands for it
/// (tensor/device_meant.h). All others go to ATen. Callers allocate on meta what they allocate on the CPU;
/// with_element_type() then skips the kernel.
inline bool has_kernel(const at::Tensor& x) {
  const auto type = x.scalar_type();
  return tensor::is_for_cpu(x) && (type == at::kDouble || type == at::kFloat || type == at::kBFloat16);
}

/// True for accelerators, where LibTorch's fused operators run. Meta is no accelerator: a path whose operators LibTorch
/// lacks for meta asks this function, and meta takes its reference. All other choices ask is_for_accelerator().
using tensor::is_accelerator;
using tensor::is_for_accelerator;

/// Number of elements per call of tensor operators that allocate several tensors as large as their input.
constexpr int64_t kSliceElements = int64_t{1} << 22;

/// Returns the dtype in which kernels compute: fp64 for fp64, else fp32.
inline at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Calls body(T()) with T = double, float or Bf16. Requires has_kernel(x). Does nothing on meta, which has no values.
template <class Body>
void with_element_type(const at::Tensor& x, Body&& body) {
  if (x.is_meta()) return;
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

/// Returns a pointer to the first element of a tensor whose dtype is T's; null for an undefined one, and on meta.
template <class T>
T* pointer(const at::Tensor& x) {
  return x.defined() && !x.is_meta() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}

}  // namespace colossal::ops
