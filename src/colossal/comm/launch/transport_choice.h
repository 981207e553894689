// Which transport the groups of a run use: one answer for all ranks, whatever host each of them is on.
#pragma once
#include <string>
#include <vector>

namespace colossal::comm {

/// What a rank tells the others before a transport is chosen.
struct RankFacts {
  std::string host;              ///< host_identity()
  std::string backend = "auto";  ///< that it was asked for
  /// Devices::pci_id() of those that it may use, when it is to compute on them; it takes that of device_of()
  std::vector<std::string> gpus{};
  bool has_nccl = false;  ///< its build has NCCL

  /// Returns the entry of `gpus` that this rank takes as local rank `local_rank` of its host. `gpus` must not be empty.
  const std::string& gpu_of(int local_rank) const;

  /// For the store, and back. Errors: throws Error("launch", ...) for a text that no rank of this build says.
  std::string text() const;
  static RankFacts read(const std::string& text, int rank);
};

struct TransportChoice {
  std::string backend;  ///< "shm", "gloo" or "nccl"
  std::string why;      ///< for people: why GPUs exchange through host memory; empty when they do not
};

/// The choice for a run of these ranks: what they were asked for; for "auto", nccl when every rank takes a GPU that no
/// other rank of its host takes, whatever each of them sees, else shm on one host and gloo on several. A pure function:
/// ranks that know the same facts choose alike. Errors: throws Error("launch", ...), on all ranks alike, when ranks
/// were asked for different backends, for shm on several hosts, or for nccl where ranks share a GPU.
TransportChoice choose_transport(const std::vector<RankFacts>& ranks);

}  // namespace colossal::comm
