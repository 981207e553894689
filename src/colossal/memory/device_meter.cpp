#include "colossal/memory/device_meter.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

#include "colossal/base/machine.h"
#include "colossal/memory/account.h"
#include "colossal/tensor/device_meant.h"

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

class ArenaMeter final : public DeviceMeter {
 public:
  explicit ArenaMeter(Counted counted) : counted_(counted) {}
  void begin(int64_t) override {  // an account does not count earlier tensors
    account_.reset();
    account_.emplace(counted_);
  }
  void end() override { account_.reset(); }
  int64_t peak() const override { return account_ ? account_->usage().peak_device : 0; }
  void restart() override {
    if (account_) account_->reset_peaks();
  }

 private:
  const Counted counted_;
  std::optional<Account> account_;
};

class AllocatorMeter final : public DeviceMeter {
 public:
  explicit AllocatorMeter(at::Device device) : device_(device) {}
  void begin(int64_t resident) override {
    resident_ = resident;
    restart();
  }
  void end() override {}
  int64_t peak() const override { return peak_bytes(device_) - resident_; }
  void restart() override { restart_peak(device_); }

 private:
  at::Device device_;
  int64_t resident_ = 0;
};

}  // namespace

int64_t peak_bytes(at::Device device) {
  if (!tensor::is_accelerator(device)) return peak_resident_bytes();
  c10::DeviceAllocator* counter = counter_of(device);
  if (!counter) return 0;
  constexpr auto kAll = static_cast<size_t>(c10::CachingDeviceAllocator::StatType::AGGREGATE);
  return counter->getDeviceStats(index_of(device)).allocated_bytes[kAll].peak;
}

int64_t total_bytes(at::Device device) {
  if (!tensor::is_accelerator(device)) return 0;
  try {
    return static_cast<int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(index_of(device)).second);
  } catch (const c10::Error&) {
    return 0;
  }
}

void restart_peak(at::Device device) {
  if (c10::DeviceAllocator* counter = counter_of(device)) counter->resetPeakStats(index_of(device));
}

Counted counted_on(at::Device device) {
  if (!device.is_meta()) return Counted::Memory;
  return tensor::is_for_accelerator(device) ? Counted::Shapes : Counted::MemoryAndShapes;
}

std::unique_ptr<DeviceMeter> make_device_meter(at::Device device) {
  if (tensor::is_accelerator(device)) return std::make_unique<AllocatorMeter>(device);
  return std::make_unique<ArenaMeter>(counted_on(device));
}

}  // namespace colossal::memory
