// Which devices have kernels of ours, and how an operator runs one:
//
//   if (with_device_kernels(x, [&](auto element, const auto& kernels, void* stream) {
//         using T = decltype(element);
//         kernels.swiglu_forward(in_of<T>(x), pointer<T>(y), rows, stream);
//       })) return y;                                  // else by LibTorch's operators
//
// CUDA's are there where nvcc was found and LibTorch has CUDA. Like LibTorch's own backends they are of the process.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "colossal/ops/device_kernels.h"

namespace colossal::ops {

/// The kernels of a kind of device; null: it has none, as the CPU, whose are in kernels.h.
const DeviceTables* device_tables(c10::DeviceType type);

/// Gives a kind of device other kernels, or with null none, while it lives: for tests. Threads: make and end it while
/// no other thread runs operators.
class DeviceTablesScope {
 public:
  DeviceTablesScope(c10::DeviceType type, const DeviceTables* tables);
  ~DeviceTablesScope();
  DeviceTablesScope(const DeviceTablesScope&) = delete;
  DeviceTablesScope& operator=(const DeviceTablesScope&) = delete;

 private:
  c10::DeviceType type_;
  const DeviceTables* before_;
};

/// True for tensors of a floating type on a device that has kernels.
bool has_device_kernels(const at::Tensor& x);

/// The runtime's handle of the stream that operators on `device` go to now.
void* current_stream(c10::Device device);

/// body(T(), table of T, stream) with the element type of `x` and its device made the current one; false, and nothing
/// done, unless has_device_kernels(x).
template <class Body>
bool with_device_kernels(const at::Tensor& x, const Body& body) {
  if (!has_device_kernels(x)) return false;
  const DeviceTables& tables = *device_tables(x.device().type());
  const c10::DeviceGuard guard(x.device());
  void* stream = current_stream(x.device());
  switch (x.scalar_type()) {
    case at::kDouble:
      body(double(), tables.of_double, stream);
      break;
    case at::kFloat:
      body(float(), tables.of_float, stream);
      break;
    case at::kBFloat16:
      body(Bf16(), tables.of_bf16, stream);
      break;
    default:
      body(Half(), tables.of_half, stream);
  }
  return true;
}

}  // namespace colossal::ops
