// What a training step moved between host memory and the disk, of all ranks together.
//
//   TierMoves moves(engine->tiers());
//   moves.begin_step();
//   ...
//   metrics.tiers = moves.end_step(mesh.all());
#pragma once
#include <cstdint>
#include <optional>

#include "colossal/comm/group.h"
#include "colossal/memory/tiers/tiered_home.h"
#include "colossal/report/metrics.h"

namespace colossal::train {

class TierMoves {
 public:
  /// Of a rank without tiers: null.
  explicit TierMoves(const memory::TieredHome* tiers) : tiers_(tiers) {}
  void begin_step();
  /// What moved since begin_step(), and where it is now. Communication: with tiers, which all ranks have or none, an
  /// all_reduce of 32 bytes.
  std::optional<report::TierMetrics> end_step(comm::Group& ranks) const;

 private:
  const memory::TieredHome* tiers_;
  int64_t read_before_ = 0, written_before_ = 0;
};

}  // namespace colossal::train
