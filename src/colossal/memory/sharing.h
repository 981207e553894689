// What the replicas of a model share out instead of holding it each (ZeRO, Rajbhandari et al. 2020, arXiv:1910.02054).
#pragma once

namespace colossal::memory {

/// Each needs the one before it: who keeps a part of the gradients updates that part alone.
struct Sharing {
  bool states = false;      ///< optimizer states and masters: a rank updates its part of every chunk
  bool gradients = false;   ///< made whole chunk by chunk, then each rank keeps its part of the sum
  bool parameters = false;  ///< gathered for each use
  /// ZeRO's stages: 0 nothing, 1 states, 2 gradients too, 3 parameters too. Errors ("zero"): another stage.
  static Sharing of_stage(int stage);
  bool is_legal() const { return (states || !gradients) && (gradients || !parameters); }
};

}  // namespace colossal::memory
