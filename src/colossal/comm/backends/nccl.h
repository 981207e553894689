// The transport between GPUs: c10d's NCCL, one rank a GPU. Compiled where nccl.h is found; no_nccl.cpp stands in
// elsewhere.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/backends/backend.h"
#include "colossal/comm/store.h"

namespace colossal::comm {

bool has_nccl();
/// Where CUDA's device `index` of this process sits on the bus, "0000:3b:00.0"; only its number where this build has no
/// NCCL to ask for it.
std::string pci_id_of_gpu(int index);

struct NcclOptions {
  std::string name;
  int rank = 0, size = 1;
  std::vector<int> world_ranks;               ///< of the members, for NCCL's own diagnostics
  int device = 0;                             ///< index of this rank's GPU, which no other rank may use
  std::chrono::milliseconds limit = kFarOff;  ///< of NCCL itself: ranks wait as long as the watchdog lets them
};

/// Collective among the members. CUDA tensors travel by NCCL: Work::wait() makes the current stream wait, not the host;
/// Work::done() then says whether that stream has come past it. The destructor does not throw, and waits for no peer
/// once the group was aborted or an exception ends its owner. bf16 and fp16 sums are NCCL's own: accumulated per hop.
/// Errors: throws Error("comm", ...) where this build has no NCCL; of the group: tensors of the CPU, which DeviceGroup
///         keeps away.
std::shared_ptr<Backend> make_nccl_group(const NcclOptions& options, std::shared_ptr<Store> store);

}  // namespace colossal::comm
