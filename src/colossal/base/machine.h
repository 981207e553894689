// A description of this machine and of the memory that this process uses. Linux only. A value that cannot be read is 0
// or empty.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal {

/// The properties of a machine, as this process sees them.
struct Machine {
  std::string host;  ///< host name
  std::string cpu;   ///< model name
  /// The number of cores that this process may run on (affinity and cgroup quota). Hyper-threads count.
  int cores = 1;
  /// The instruction sets that the library's kernels may use: sse4.2, avx2, fma, avx512f, amx_bf16, neon, ...
  std::vector<std::string> instruction_sets;
  int64_t memory_total = 0;      ///< bytes of memory of the machine
  int64_t memory_available = 0;  ///< bytes that a process could still allocate, within the cgroup's limit
  int64_t swap_total = 0;        ///< bytes of swap space, in addition to the memory
  int64_t memory_limit = 0;      ///< bytes that the cgroup allows; 0 = no limit
};

Machine describe_machine();

/// Returns the bytes of memory that this process uses now.
int64_t resident_bytes();
/// Returns the largest number of bytes of memory that this process has used so far.
int64_t peak_resident_bytes();

}  // namespace colossal
