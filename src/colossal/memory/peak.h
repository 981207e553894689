// The peak memory of this process on the device of its tensors.
//
//   metrics.peak_bytes = memory::peak_bytes(engine->device());
#pragma once
#include <c10/core/Device.h>

#include <cstdint>

namespace colossal::memory {

/// Returns the peak in bytes: on the CPU, the peak of the process's resident memory. On an accelerator, it is the peak
/// that LibTorch's allocator of `device` had given to tensors (torch.cuda.max_memory_allocated), without host memory.
/// It is 0 before the first tensor there. The host does not wait for the device. Errors: throws for a device whose
/// allocator counts nothing.
int64_t peak_bytes(at::Device device);

/// Restarts peak_bytes() of an accelerator, for the whole process, at what tensors have there now. Does nothing on the
/// CPU, because the system counts there.
void restart_peak(at::Device device);

}  // namespace colossal::memory
