// Which transport the groups of a run use: one answer for all ranks, whatever host each of them is on.
#pragma once
#include <string>
#include <vector>

namespace colossal::comm {

/// What a rank tells the others before a transport is chosen.
struct RankFacts {
  std::string host;              ///< host_identity()
  std::string backend = "auto";  ///< that it was asked for
  int gpus = 0;                  ///< that it sees, when it is to compute on them
  bool has_nccl = false;         ///< its build has NCCL

  /// For the store, and back. Errors: throws Error("launch", ...) for a text that no rank of this build says.
  std::string text() const;
  static RankFacts read(const std::string& text, int rank);
};

struct TransportChoice {
  std::string backend;  ///< "shm", "gloo" or "nccl"
  std::string why;      ///< for people: why GPUs exchange through host memory; empty when they do not
};

/// The choice for a run of these ranks: what they were asked for; for "auto", nccl when every host has a GPU for each
/// of its ranks, else shm on one host and gloo on several. A pure function: ranks that know the same facts choose
/// alike. Errors: throws Error("launch", ...), on all ranks alike, when ranks were asked for different backends, or for
/// shm on several hosts.
TransportChoice choose_transport(const std::vector<RankFacts>& ranks);

}  // namespace colossal::comm
