#include "colossal/memory/peak.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "colossal/base/machine.h"

namespace colossal::memory {

int64_t peak_bytes(at::Device device) {
  if (device.is_cpu() || device.is_meta()) return peak_resident_bytes();
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(device.type());
  if (!allocator->initialized()) return 0;
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  constexpr auto kAll = static_cast<size_t>(c10::CachingDeviceAllocator::StatType::AGGREGATE);
  return allocator->getDeviceStats(device.index()).allocated_bytes[kAll].peak;
}

}  // namespace colossal::memory
