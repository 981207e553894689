// The transports of c10d, a library of LibTorch: Gloo between hosts, and NCCL between GPUs.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/backends/backend.h"
#include "colossal/comm/store.h"

namespace colossal::comm {

struct GlooOptions {
  std::string name;
  int rank = 0, size = 1;
  std::string address;  ///< address of this host's interface that the peers can reach; GLOO_SOCKET_IFNAME overrides it
  std::chrono::milliseconds limit = kBackendTimeout;  ///< limit of Gloo itself: only the watchdog limits waits
  /// True = an all_reduce adds each element in the order of the ranks, as reduce_scatter does. False = over more than
  /// two ranks the order in fp32 and fp64 depends on where an element is in the message, which is faster for large ones
  bool in_rank_order = false;
};

/// Makes a group of Gloo over TCP; collective among the members. It adds a reduce-scatter that moves only the necessary
/// bytes, and sums of bf16 and fp16 that are accumulated in fp32. Opens a connection to each peer. `store` belongs to
/// the group alone (its prefix is unique).
///
/// CPU tensors only (see HostStaging). Calls of up to 64 KB run in the calling thread, larger ones on a thread of the
/// group, in order.
/// Errors: a lost connection throws Error("comm", ...). Gloo does not compare the calls of ranks: a mismatch shows as
///         a failure of size, or as a stall that the watchdog ends.
std::shared_ptr<Backend> make_gloo_group(const GlooOptions& options, std::shared_ptr<Store> store);

/// Returns true if this build has NCCL: nccl.cpp is compiled if nccl.h is found; otherwise no_nccl.cpp replaces it.
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

/// Makes a group of NCCL, one GPU per rank; collective among the members. NCCL carries CUDA tensors. Work::wait() makes
/// the current stream wait, not the host; after that, Work::done() returns true once that stream has passed the
/// collective. The destructor does not throw. It waits for no peer if the group was aborted or an exception ends its
/// owner. NCCL itself computes bf16 and fp16 sums, which are accumulated per hop.
/// Errors: throws Error("comm", ...) if this build has no NCCL. The group throws for CPU tensors; DeviceGroup sends
///         them elsewhere.
std::shared_ptr<Backend> make_nccl_group(const NcclOptions& options, std::shared_ptr<Store> store);

}  // namespace colossal::comm
