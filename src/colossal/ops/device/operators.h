// Support of LibTorch's GPU operators by a device. Some operators need a GPU of a certain compute capability or a
// LibTorch built with them. LibTorch has no query for this, so runs() tries an operator once on each device.
//
//   if (ops::runs(ops::DeviceOperator::ScaledProduct, x.device()))   // else the products are made without it
//     y = at::_scaled_mm(...);
#pragma once
#include <c10/core/Device.h>

namespace colossal::ops {

enum class DeviceOperator {
  FlashAttention,  ///< _flash_attention_forward and backward: compute capability 8.0 or higher
  ScaledProduct,   ///< _scaled_mm of 8-bit floating point: compute capability 8.9 or higher
  Int4Product,     ///< _weight_int4pack_mm of bf16 and 4-bit quantized values: compute capability 8.0 or higher
  GroupedProduct,  ///< _grouped_mm of bf16: compute capability 8.0 or higher, depending on the version of LibTorch
};

/// Returns true if `device` runs the operator. Returns false for the CPU, where Colossal's own kernels run. Answers for
/// meta as for the device that it stands for (tensor/device_meant.h). An accelerator that meta stands for is taken to
/// run every operator, except those of MeantWithoutOperator. The operators have no kernel on meta, so a caller makes
/// results of the same sizes there.
///
/// Cost:          the first call for an operator and a device runs the operator on a few elements and checks whether
///                it throws; the host does not wait for the result. Later calls use the stored answer.
/// Errors:        throws c10::OutOfMemoryError if the device is out of memory, because this says nothing about the
///                operator. Any other c10::Error counts as "does not run".
/// Thread safety: any thread may call it.
bool runs(DeviceOperator op, c10::Device device);

/// Makes runs() return false for `op` in all threads as long as the object lives: for tests of the paths without it.
class WithoutDeviceOperator {
 public:
  explicit WithoutDeviceOperator(DeviceOperator op);
  ~WithoutDeviceOperator();
  WithoutDeviceOperator(const WithoutDeviceOperator&) = delete;
  WithoutDeviceOperator& operator=(const WithoutDeviceOperator&) = delete;

 private:
  DeviceOperator op_;
};

/// Makes runs() return false for `op` on meta, on this thread, as long as the object lives: for recorded runs of
/// devices without it.
class MeantWithoutOperator {
 public:
  explicit MeantWithoutOperator(DeviceOperator op);
  ~MeantWithoutOperator();
  MeantWithoutOperator(const MeantWithoutOperator&) = delete;
  MeantWithoutOperator& operator=(const MeantWithoutOperator&) = delete;

 private:
  DeviceOperator op_;
};

}  // namespace colossal::ops
