// The memory of CPU tensors. The C library returns large blocks to the system when they are freed. Every training step
// would therefore fault its activations in again, page by small page. This allocator keeps the blocks for reuse, in
// huge pages.
#pragma once
#include <cstddef>

namespace colossal::memory {

/// Makes later CPU tensors of 256 KiB and more use a cache of segments. Segments are never given back while in use, and
/// have huge pages if the system allows it. Smaller tensors use the C library as before.
///
/// Lifetime:      until the process ends, on all threads; existing tensors keep their memory. A second call does
///                nothing. For main(), before other threads allocate tensors: a library must not make this decision
///                for its program.
/// Fit:           best fit; blocks are split and merged. A steady step takes no memory from the system. If the system
///                has none left, segments without live tensors are returned to it first.
/// Accounts:      memory::Account and LibTorch's profiler count these tensors as they count others.
/// Thread safety: full. A child made by fork() may allocate and free tensors while other threads of its parent do.
void keep_host_memory();

struct HostMemory {
  size_t reserved_bytes = 0;   ///< bytes taken from the system
  size_t used_bytes = 0;       ///< bytes in live tensors
  size_t peak_used_bytes = 0;  ///< peak of used_bytes
  size_t system_requests = 0;  ///< segments ever taken from the system: constant in a steady state
};

/// Returns the current usage; all zero unless keep_host_memory() was called.
HostMemory host_memory();

/// Limits the memory that waits for reuse: segments without live tensors are returned to the system before a segment is
/// taken that would reserve more than `bytes`. Live tensors may exceed the limit. The default is no limit. Has no
/// effect unless keep_host_memory() was called before.
void limit_host_memory(size_t bytes);

/// Returns segments without live tensors to the system. Returns their bytes.
size_t release_host_memory();

}  // namespace colossal::memory
