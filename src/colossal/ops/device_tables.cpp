#include "colossal/ops/device_tables.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <atomic>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::ops {
namespace {

/// By the number of the kind of device.
std::atomic<const DeviceTables*>& slot_of(c10::DeviceType type) {
  static std::array<std::atomic<const DeviceTables*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> slots{};
#if defined(COLOSSAL_CUDA_KERNELS)
  [[maybe_unused]] static const bool has_cuda = [] {
    slots[static_cast<size_t>(c10::DeviceType::CUDA)] = &cuda_tables();
    return true;
  }();
#endif
  return slots[static_cast<size_t>(type)];
}

}  // namespace

const DeviceTables* device_tables(c10::DeviceType type) { return slot_of(type).load(std::memory_order_acquire); }

DeviceTablesScope::DeviceTablesScope(c10::DeviceType type, const DeviceTables* tables)
    : type_(type), before_(slot_of(type).exchange(tables)) {}
DeviceTablesScope::~DeviceTablesScope() { slot_of(type_) = before_; }

bool has_device_kernels(const at::Tensor& x) {
  const auto type = x.scalar_type();
  const bool is_float = type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  return is_float && device_tables(x.device().type());
}

void* current_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamNativeHandle(guard.getStream(device));
}

void refuse_launch(const char* reason) {
  throw Error("kernels", concat("the device refused a kernel: ", reason,
                                "; they are built for compute capabilities from 7.5 on"));
}

}  // namespace colossal::ops
