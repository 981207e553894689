// Logs and measures stalls: times in which ranks wait for one another.
#pragma once
#include <mutex>

#include "colossal/base/log.h"
#include "colossal/comm/world.h"

namespace colossal::train {

/// Logs the stalls of a world during its lifetime. The rank that detected one logs a warning; rank 0 writes them to its
/// log file. Thread safe. A world may have only one. `world` and `log` must outlive it.
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
