// What this machine is, and what this process uses of it. Linux; figures that cannot be read are 0 or empty.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal {

struct Machine {
  std::string host;
  std::string cpu;  // model name
  // that this process may run on (affinity and cgroup quota), hyper-threads counted
  int cores = 1;
  // of those that matter here: sse4.2, avx2, fma, avx512f, amx_bf16, neon, ...
  std::vector<std::string> instruction_sets;
  int64_t memory_total = 0;      // bytes of the machine
  int64_t memory_available = 0;  // bytes a process could still take, within the cgroup's limit
  int64_t swap_total = 0;        // bytes of swap space, beside the memory
  int64_t memory_limit = 0;      // bytes the cgroup allows; 0: no limit
};

Machine describe_machine();

/// Bytes of memory in use by this process now, and at most so far.
int64_t resident_bytes();
int64_t peak_resident_bytes();

}  // namespace colossal
