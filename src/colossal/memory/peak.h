// The most memory that this process has had, where its tensors are.
//
//   metrics.peak_bytes = memory::peak_bytes(engine->device());
#pragma once
#include <c10/core/Device.h>

#include <cstdint>

namespace colossal::memory {

/// Bytes. On the CPU those that the process had resident at most. On an accelerator those that LibTorch's allocator of
/// `device` had given to tensors at most (torch.cuda.max_memory_allocated), whatever memory the host needed; 0 before
/// the first tensor there. Nobody waits for the device. Errors: throws for a device whose allocator counts nothing.
int64_t peak_bytes(at::Device device);

/// From now on peak_bytes() of an accelerator begins with what tensors have there now, for the whole process; on the
/// CPU, where the system counts, nothing happens.
void restart_peak(at::Device device);

}  // namespace colossal::memory
