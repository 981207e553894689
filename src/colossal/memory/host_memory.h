// Where CPU tensors get their memory. The C library gives large blocks back to the system when they are freed, so every
// step of a training run faults its activations in again, page by small page; here they are kept and reused, in huge
// pages.
#pragma once
#include <cstddef>

namespace colossal::memory {

/// From now on CPU tensors of 256 KiB and more come from a cache of segments that are never given back while in use and
/// are backed by huge pages where the system allows it; smaller ones come from the C library as before.
///
/// Lifetime:      for the process, on all threads; tensors that exist keep their memory. A second call does nothing.
///                Meant for main(): a library must not decide this for its host.
/// Fit:           best fit, blocks are split and merged; a steady step takes nothing from the system.
/// Accounts:      memory::Account and LibTorch's profiler hear of these as of others.
/// Thread safety: full.
void keep_host_memory();

struct HostMemory {
  size_t reserved_bytes = 0;   ///< taken from the system
  size_t used_bytes = 0;       ///< in live tensors
  size_t peak_used_bytes = 0;  ///< most that was ever in live tensors
  size_t system_requests = 0;  ///< segments ever taken: constant in a steady state
};

/// All zero unless keep_host_memory() was called.
HostMemory host_memory();

/// From now on segments without live tensors go back to the system before one is taken with which more than `bytes`
/// would be reserved: live tensors may exceed it, memory that waits for the next one may not. Nothing unless
/// keep_host_memory() was called, after which there is no limit.
void limit_host_memory(size_t bytes);

/// Gives segments without live tensors back to the system; returns the bytes.
size_t release_host_memory();

}  // namespace colossal::memory
