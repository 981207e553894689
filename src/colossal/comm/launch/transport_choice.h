// Chooses the transport of a run's groups: the same answer on all ranks, whatever host each of them is on.
#pragma once
#include <string>
#include <vector>

namespace colossal::comm {

/// Facts that a rank reports to the others before a transport is chosen.
struct RankFacts {
  std::string host;              ///< host_identity()
  std::string backend = "auto";  ///< backend of this rank's configuration
  /// Devices::pci_id() of the devices that the rank may use, if it computes on devices, else empty; it takes the
  /// one of device_of()
  std::vector<std::string> gpus{};
  bool has_nccl = false;  ///< true if the rank's build has NCCL

  /// Returns the entry of `gpus` that this rank takes as local rank `local_rank` of its host. `gpus` must not be empty.
  const std::string& gpu_of(int local_rank) const;

  /// Converts the facts to a text for the store, and back. Errors: throws Error("launch", ...) for a text that no rank
  /// of this build writes.
  std::string text() const;
  static RankFacts read(const std::string& text, int rank);
};

struct TransportChoice {
  std::string backend;  ///< "shm", "gloo" or "nccl"
  std::string why;      ///< reason, for the user, why GPUs exchange through host memory; empty if they do not
};

/// Returns the transport for a run of these ranks. An explicit backend is used as it is. "auto" means nccl if every
/// build has NCCL and every rank takes a GPU that no other rank of its host takes. Otherwise it means shm on one host
/// and gloo on several. Each rank may see a different set of GPUs. A pure function: ranks that know the same
/// facts make the same choice. Errors: throws Error("launch", ...) on all ranks if ranks were configured with different
/// backends, with shm on several hosts, or with nccl although ranks share a GPU.
TransportChoice choose_transport(const std::vector<RankFacts>& ranks);

}  // namespace colossal::comm
