// From a tensor to the kernels of its element type.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/kernels.h"
#include "colossal/tensor/elsewhere.h"

namespace colossal::ops {

/// True for the tensors that the CPU kernels take: CPU, fp64, fp32 or bf16. All others go to ATen.
inline bool has_kernel(const at::Tensor& x) {
  const auto type = x.scalar_type();
  return x.is_cpu() && (type == at::kDouble || type == at::kFloat || type == at::kBFloat16);
}

/// On accelerators LibTorch's fused operators run. Meta is none: there the references say what there is.
using tensor::is_elsewhere;

/// Elements that tensor operators are given at a time where they make several tensors as large as what they are given.
constexpr int64_t kSliceElements = int64_t{1} << 22;

/// The dtype kernels compute in: fp64 for fp64, else fp32.
inline at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// body(T()) with T = double, float or Bf16. Only for tensors with has_kernel().
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

/// What the kernels that read or write beside fp32 call the dtype of `x`; None for others and for an undefined one.
inline Narrow narrow_type(const at::Tensor& x) {
  if (!x.defined()) return Narrow::None;
  return x.scalar_type() == at::kBFloat16 ? Narrow::Bf16 : x.scalar_type() == at::kHalf ? Narrow::Half : Narrow::None;
}

/// First element of a tensor whose dtype is T's, null for an undefined one.
template <class T>
T* pointer(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}

}  // namespace colossal::ops
