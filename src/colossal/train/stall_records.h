// What a run says and keeps of ranks that wait for one another.
#pragma once
#include <mutex>

#include "colossal/base/log.h"
#include "colossal/comm/world.h"

namespace colossal::train {

/// Writes the stalls of a world to the log while it lives: the rank that noticed one as a warning, rank 0 for its file.
/// Thread safe; one of them for a world. `log` must outlive it.
class StallRecords {
 public:
  StallRecords(comm::World& world, const Log& log);
  ~StallRecords();
  StallRecords(const StallRecords&) = delete;
  StallRecords& operator=(const StallRecords&) = delete;

  /// Seconds that stalls lasted which are over since the last call: on rank 0 all of them, elsewhere those that this
  /// rank noticed.
  double take_seconds();

 private:
  void hear(const comm::Stall& stall);

  comm::World& world_;
  const Log& log_;
  std::mutex mutex_;
  double seconds_ = 0;
};

}  // namespace colossal::train
