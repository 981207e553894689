// The peak memory of tensors on a device: of this process, and between two moments.
//
//   metrics.peak_bytes = memory::peak_bytes(engine->device());
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

#include "colossal/memory/account.h"

namespace colossal::memory {

/// Returns the peak memory of this process on `device` in bytes: on the CPU, the peak of the process's resident memory.
/// On an accelerator, it is the peak that LibTorch's allocator of `device` had given to tensors
/// (torch.cuda.max_memory_allocated), without host memory. It is 0 before the first tensor there. The host does not
/// wait for the device. Errors: throws for a device whose allocator counts nothing.
int64_t peak_bytes(at::Device device);

/// Returns the memory of an accelerator in bytes, as its allocator reports it; 0 for the CPU, meta and a device that
/// reports none.
int64_t total_bytes(at::Device device);

/// Restarts peak_bytes() of an accelerator, for the whole process, at what tensors have there now. Does nothing on the
/// CPU, because the system counts there.
void restart_peak(at::Device device);

/// Measures between begin() and end(), on the thread that called begin() and on the threads of its backward passes. On
/// the CPU the device is an arena of host memory: the meter counts what is allocated in that time, except memory of an
/// offload store (Kind::Host). On an accelerator it counts all memory that the allocator has given to tensors. On meta
/// it counts as on the CPU, with the bytes that tensors would have.
class DeviceMeter {
 public:
  virtual ~DeviceMeter() = default;
  /// Starts to measure. `resident`: bytes of tensors that are there already and stay until end(); they are not counted.
  /// Errors: see Account.
  virtual void begin(int64_t resident) = 0;
  virtual void end() = 0;
  /// Returns the peak in bytes since restart() or begin().
  virtual int64_t peak() const = 0;
  /// Restarts the peak at the current usage.
  virtual void restart() = 0;
};

/// Returns what an account of a run on `device` counts. On meta it is the shapes, and the host's tensors too if meta
/// stands for the CPU on this thread (tensor/device_meant.h).
Counted counted_on(at::Device device);

/// Returns the meter of `device`: an Account on the CPU and on meta, the statistics of the allocator on an accelerator.
/// The meter of an accelerator restarts the allocator's peaks (restart_peak()). Cost: on the CPU one map entry per
/// allocation.
std::unique_ptr<DeviceMeter> make_device_meter(at::Device device);

}  // namespace colossal::memory
