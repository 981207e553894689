#include "colossal/ops/device/tables.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::ops {
namespace {

/// Returns the table of a kind of device.
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

/// Returns true if a device runs the kernels of a table. Each device is tested once.
bool are_run_by(const DeviceTables& tables, c10::Device device) {
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  static std::mutex mutex;
  static std::map<std::pair<const DeviceTables*, c10::DeviceIndex>, bool> known;
  const std::lock_guard lock(mutex);
  const auto key = std::pair(&tables, device.index());
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const c10::DeviceGuard guard(device);
  return known[key] = tables.does_current_run();
}

}  // namespace

const DeviceTables* device_tables(c10::Device device) {
  const DeviceTables* tables = slot_of(device.type()).load(std::memory_order_acquire);
  return tables && are_run_by(*tables, device) ? tables : nullptr;
}

DeviceTablesScope::DeviceTablesScope(c10::DeviceType type, const DeviceTables* tables)
    : type_(type), before_(slot_of(type).exchange(tables)) {}
DeviceTablesScope::~DeviceTablesScope() { slot_of(type_) = before_; }

bool has_device_kernels(const at::Tensor& x) {
  const auto type = x.scalar_type();
  const bool is_float = type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  return is_float && (x.is_meta() ? tensor::is_for_accelerator(x) : device_tables(x.device()) != nullptr);
}

void* current_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamNativeHandle(guard.getStream(device));
}

void refuse_launch(const char* reason) {
  throw Error("kernels", concat("cannot launch a kernel: ", reason,
                                "; an earlier kernel may have failed: set CUDA_LAUNCH_BLOCKING=1 to find it"));
}

}  // namespace colossal::ops
