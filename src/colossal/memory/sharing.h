// Tensors that the replicas of a model shard instead of holding all of them (ZeRO, Rajbhandari et al. 2020,
// arXiv:1910.02054).
#pragma once

namespace colossal::memory {

/// Each option requires the one before it, because a rank that keeps a part of the gradients updates that part alone.
struct Sharing {
  bool states = false;      ///< optimizer states and master weights: a rank updates its part of every chunk
  bool gradients = false;   ///< summed chunk by chunk, then each rank keeps its part of the sum
  bool parameters = false;  ///< parameters: a rank keeps its part, and each use gathers the chunk
  /// Returns the options of a ZeRO stage: 0 nothing, 1 states, 2 gradients too, 3 parameters too. Errors ("zero"):
  /// another stage.
  static Sharing of_stage(int stage);
  bool is_legal() const { return (states || !gradients) && (gradients || !parameters); }
};

}  // namespace colossal::memory
