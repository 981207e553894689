// What each step of a run measures beside its losses: the memory of its ranks, transfers of tiers, and stalls.
//
//   MeasuredMemory memory(device);               // before the first tensor of the run
//   TierMoves moves(*engine);
//   StallRecords stalls(world, log);
//   memory.begin_step(), moves.begin_step();
//   ...
//   metrics.add(memory.end_step(mesh.all()));    // rows "device_peak_bytes" and "resident_bytes"
//   metrics.add(moves.end_step(mesh.all()));     // rows "tiers.host_bytes", "tiers.disk_bytes", ...
//   const double stalled = stalls.take_seconds();
#pragma once
#include <c10/core/Device.h>

#include <mutex>
#include <optional>
#include <vector>

#include "colossal/base/log.h"
#include "colossal/base/metric.h"
#include "colossal/comm/group.h"
#include "colossal/comm/world.h"
#include "colossal/memory/account.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/train/engine.h"

namespace colossal::train {

/// Measures the memory of each step of a run that has a prediction, for the comparison at its end. On the CPU it holds
/// a memory::Account of this thread, so it must end on the thread that made it.
class MeasuredMemory {
 public:
  explicit MeasuredMemory(at::Device device);
  void begin_step();
  /// Returns the most bytes of any rank: of tensors on the device during this step (on accelerators so far), and of
  /// resident memory so far. Communication: an all_gather of 16 bytes from each rank.
  std::vector<Metric> end_step(comm::Group& ranks) const;

 private:
  at::Device device_;
  std::optional<memory::Account> account_;  // none on accelerators, whose allocator counts
};

/// Measures the transfers of tiers in each step: bytes of all ranks that moved between devices, host memory and disk,
/// and bytes that each stores.
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

/// Logs and measures the stalls of a world during its lifetime: times in which ranks wait for one another. The rank
/// that detected one logs a warning; rank 0 writes them to its log file. Thread safe. A world may have only one.
/// `world` and `log` must outlive it.
class StallRecords {
 public:
  StallRecords(comm::World& world, const Log& log);
  ~StallRecords();
  StallRecords(const StallRecords&) = delete;
  StallRecords& operator=(const StallRecords&) = delete;

  /// Returns the seconds of all stalls that ended since the last call. Rank 0 counts all of them, other ranks those
  /// that they detected.
  double take_seconds();

 private:
  void hear(const comm::Stall& stall);

  comm::World& world_;
  const Log& log_;
  std::mutex mutex_;
  double seconds_ = 0;
};

}  // namespace colossal::train
