// The kind of device that a tensor is on, and the device that a computation stands for. A recorded run computes with
// tensors on meta, which have sizes and no memory, and must make the choices of the device that it simulates.
//
//   if (tensor::is_accelerator(x.device())) return by_fused_operators(x);   // else by kernels of ours
//
//   const tensor::MeantDevice device(at::kCUDA);            // a run on meta that simulates CUDA
//   if (tensor::is_for_accelerator(x)) return by_fused_operators(x);   // as CUDA would choose
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::tensor {

/// Returns true for an accelerator of any kind: neither the CPU nor meta, whose tensors have no values.
inline bool is_accelerator(at::Device device) { return !device.is_cpu() && !device.is_meta(); }
inline bool is_accelerator(const at::Tensor& x) { return is_accelerator(x.device()); }

/// Sets the device that tensors on meta stand for, on this thread, during its lifetime. Backward passes of tensors on
/// meta run on the thread that starts them, so it applies to them, too. The innermost scope applies. Without a scope
/// meta stands for the CPU.
class MeantDevice {
 public:
  explicit MeantDevice(at::DeviceType device);
  ~MeantDevice();
  MeantDevice(const MeantDevice&) = delete;
  MeantDevice& operator=(const MeantDevice&) = delete;

 private:
  const at::DeviceType before_;
};

/// Returns the device whose choices apply to tensors of `device`: for meta the device of the innermost MeantDevice,
/// else `device` itself. Every choice that changes calls, operations or memory asks this function or one of the two
/// below. A caller that uses the device itself, for instance its streams, asks is_accelerator().
at::Device device_meant(at::Device device);
inline at::Device device_meant(const at::Tensor& x) { return device_meant(x.device()); }

/// Return true if the choices of an accelerator apply, or those of the CPU.
inline bool is_for_accelerator(at::Device device) { return !device_meant(device).is_cpu(); }
inline bool is_for_accelerator(const at::Tensor& x) { return is_for_accelerator(x.device()); }
inline bool is_for_cpu(const at::Tensor& x) { return device_meant(x).is_cpu(); }

/// Returns a tensor on meta that stands for `x` itself: of its sizes, strides and dtype, from no allocator, so that
/// memory::Account does not count it again. For tensors of the host that a run on the CPU reads in place.
at::Tensor shape_in_place(const at::Tensor& x);

}  // namespace colossal::tensor
