// Bytes of all ranks that a training step moved between devices, host memory and disk, and bytes that each stores.
//
//   TierMoves moves(*engine);
//   moves.begin_step();
//   ...
//   metrics.add(moves.end_step(mesh.all()));      // rows "tiers.host_bytes", "tiers.disk_bytes", ...
#pragma once
#include <vector>

#include "colossal/base/metric.h"
#include "colossal/comm/group.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/train/engine.h"

namespace colossal::train {

/// Measures the transfers of tiers in each step.
class TierMoves {
 public:
  /// `engine` must outlive it.
  explicit TierMoves(const Engine& engine) : engine_(engine) {}
  void begin_step();
  /// Returns rows of sums over all ranks: bytes that host and disk store now, and bytes moved since begin_step(). With
  /// memory.device also rows of the devices: the maximum of any rank, and bytes copied. Returns no rows without tiers.
  /// Communication: with tiers, which all ranks have or none, an all_reduce of 48 bytes; with memory.device another of
  ///                16 bytes.
  std::vector<Metric> end_step(comm::Group& ranks) const;

 private:
  struct Counts {
    memory::TieredStore::Counts tiers;
    DeviceUse device;
  };
  Counts now() const;

  const Engine& engine_;
  Counts before_;
};

}  // namespace colossal::train
