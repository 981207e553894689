// Which of LibTorch's operators for GPUs a device runs. Some want a GPU of a certain age or a LibTorch that was built
// with them, and only they know: so they are asked.
//
//   if (ops::runs(ops::DeviceOperator::ScaledProduct, x.device()))   // else the products are made without it
//     y = at::_scaled_mm(...);
#pragma once
#include <c10/core/Device.h>

namespace colossal::ops {

enum class DeviceOperator {
  FlashAttention,  ///< _flash_attention_forward and backward: compute capability 8.0
  ScaledProduct,   ///< _scaled_mm of 8-bit numbers: compute capability 8.9
  Int4Product,     ///< _weight_int4pack_mm of bf16 and codes of 4 bits: compute capability 8.0
};

/// Whether `device` runs it; false on the CPU and on meta, which have kernels of ours.
///
/// Cost:          the first question about a device calls the operator with a few numbers and sees whether it refuses;
///                nobody waits for the result. Other questions are answered from memory.
/// Errors:        what the device has to say about other things than the operator (it is out of memory).
/// Thread safety: any thread may ask.
bool runs(DeviceOperator op, c10::Device device);

/// While it lives, runs() says no about `op` to all threads: a test of what is done without it.
class WithoutDeviceOperator {
 public:
  explicit WithoutDeviceOperator(DeviceOperator op);
  ~WithoutDeviceOperator();
  WithoutDeviceOperator(const WithoutDeviceOperator&) = delete;
  WithoutDeviceOperator& operator=(const WithoutDeviceOperator&) = delete;

 private:
  DeviceOperator op_;
};

}  // namespace colossal::ops
