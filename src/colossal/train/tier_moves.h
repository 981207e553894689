// What a training step moved between devices, host memory and the disk, and what lies where: of all ranks.
//
//   TierMoves moves(*engine);
//   moves.begin_step();
//   ...
//   metrics.tiers = moves.end_step(mesh.all());
#pragma once
#include <optional>

#include "colossal/comm/group.h"
#include "colossal/memory/tiers/tiered_home.h"
#include "colossal/report/metrics.h"
#include "colossal/train/engine.h"

namespace colossal::train {

class TierMoves {
 public:
  /// `engine` outlives it.
  explicit TierMoves(const Engine& engine) : engine_(engine) {}
  void begin_step();
  /// What moved since begin_step(), and where it is now; none without tiers. Communication: with tiers, which all ranks
  /// have or none, an all_reduce of 48 bytes; with memory.device one of 16, too.
  std::optional<report::TierMetrics> end_step(comm::Group& ranks) const;

 private:
  struct Counts {
    memory::TieredHome::Counts tiers;
    DeviceUse device;
  };
  Counts now() const;

  const Engine& engine_;
  Counts before_;
};

}  // namespace colossal::train
