// The transport between GPUs: c10d's NCCL, one GPU per rank. Compiled if nccl.h is found; otherwise no_nccl.cpp
// replaces it.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/backends/backend.h"
#include "colossal/comm/store.h"

namespace colossal::comm {

bool has_nccl();
/// Returns the bus address of CUDA device `index` of this process, e.g. "0000:3b:00.0". A build without NCCL cannot
/// query it and returns the device's number, e.g. "cuda:0".
std::string pci_id_of_gpu(int index);

struct NcclOptions {
  std::string name;
  int rank = 0, size = 1;
  std::vector<int> world_ranks;                       ///< ranks of the members in the world, for NCCL's own diagnostics
  int device = 0;                                     ///< index of this rank's GPU, which no other rank may use
  std::chrono::milliseconds limit = kBackendTimeout;  ///< limit of NCCL itself: only the watchdog limits waits
};

/// Makes the group; collective among the members. NCCL carries CUDA tensors. Work::wait() makes the current stream
/// wait, not the host; after that, Work::done() returns true once that stream has passed the collective. The
/// destructor does not throw. It waits for no peer if the group was aborted or an exception ends its owner. NCCL
/// itself computes bf16 and fp16 sums, which are accumulated per hop.
/// Errors: throws Error("comm", ...) if this build has no NCCL. The group throws for CPU tensors; DeviceGroup sends
///         them elsewhere.
std::shared_ptr<Backend> make_nccl_group(const NcclOptions& options, std::shared_ptr<Store> store);

}  // namespace colossal::comm
