// What tensors take of a device's memory at most.
//
//   const auto meter = memory::make_device_meter(device);
//   meter->begin(0);
//   meter->restart();
//   forward();
//   const int64_t activations = meter->peak();
//   meter->end();
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

namespace colossal::memory {

/// Counts between begin() and end(), on the thread that called begin() and on those of its backward passes. On the CPU,
/// where the device is an arena of host memory, it counts what is made in that time, and nothing of a tier of the host
/// (Kind::Host); on an accelerator all that its allocator has given to tensors.
class DeviceMeter {
 public:
  virtual ~DeviceMeter() = default;
  /// `resident`: bytes of tensors that are there already and stay until end(), which are to be left out.
  /// Errors: those of Account.
  virtual void begin(int64_t resident) = 0;
  virtual void end() = 0;
  /// Bytes at most since restart(), or begin().
  virtual int64_t peak() const = 0;
  virtual void restart() = 0;
};

/// Returns the meter of `device`: an Account on the CPU, the statistics of the allocator on an accelerator. The meter
/// of an accelerator restarts the allocator's peaks (memory/peak.h). Cost: on the CPU one map entry per allocation.
std::unique_ptr<DeviceMeter> make_device_meter(at::Device device);

}  // namespace colossal::memory
