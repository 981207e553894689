#include "colossal/memory/peak.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "colossal/base/machine.h"
#include "colossal/tensor/accelerator.h"

namespace colossal::memory {

namespace {

/// Returns the allocator that counts for `device`; null if LibTorch's allocators do not, or have not begun to.
c10::DeviceAllocator* counter_of(at::Device device) {
  if (!tensor::is_accelerator(device)) return nullptr;
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(device.type());
  return allocator->initialized() ? allocator : nullptr;
}

c10::DeviceIndex index_of(at::Device device) {
  return device.has_index() ? device.index() : c10::impl::VirtualGuardImpl(device.type()).getDevice().index();
}

}  // namespace

int64_t peak_bytes(at::Device device) {
  if (!tensor::is_accelerator(device)) return peak_resident_bytes();
  c10::DeviceAllocator* counter = counter_of(device);
  if (!counter) return 0;
  constexpr auto kAll = static_cast<size_t>(c10::CachingDeviceAllocator::StatType::AGGREGATE);
  return counter->getDeviceStats(index_of(device)).allocated_bytes[kAll].peak;
}

void restart_peak(at::Device device) {
  if (c10::DeviceAllocator* counter = counter_of(device)) counter->resetPeakStats(index_of(device));
}

}  // namespace colossal::memory
