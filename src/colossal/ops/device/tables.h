// Devices that have kernels of ours, and how an operator runs one:
//
//   if (with_device_kernels(x, [&](auto element, const auto& kernels, void* stream) {
//         using T = decltype(element);
//         kernels.swiglu_forward(in_of<T>(x), pointer<T>(y), rows, stream);
//       })) return y;                                  // else by LibTorch's operators
//
// The kernels of CUDA exist if nvcc was found and LibTorch has CUDA, for GPUs of compute capability 7.5 and later. Like
// LibTorch's own backends, the tables are global to the process.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "colossal/ops/device/kernels.h"

namespace colossal::ops {

/// Returns the kernels of a device. Returns null if there are none for its kind (also for the CPU, see ops/kernels.h),
/// or if this device cannot run them. Each device is tested once.
const DeviceTables* device_tables(c10::Device device);

/// Replaces the kernels of a kind of device during the scope's lifetime, or removes them if `tables` is null: for
/// tests. `tables` must outlive the scope. Thread safety: no other thread may run operators while a scope is
/// constructed or destroyed.
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

/// Returns true for tensors of a floating-point type on a device that has kernels, and on meta that stands for an
/// accelerator, which is taken to have them.
bool has_device_kernels(const at::Tensor& x);

/// Returns the runtime's handle of the current stream of `device`.
void* current_stream(c10::Device device);

/// Calls body(T(), table of T, stream) with the element type of `x`; the device of `x` is current during the call.
/// Returns false without a call unless has_device_kernels(x), and on meta, which has no values.
template <class Body>
bool with_device_kernels(const at::Tensor& x, const Body& body) {
  if (x.is_meta() || !has_device_kernels(x)) return false;
  const DeviceTables& tables = *device_tables(x.device());
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
