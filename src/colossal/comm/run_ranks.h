// Ranks as threads of one process: the harness of every parallel test. No ports, no processes, a debugger works.
#pragma once
#include <chrono>
#include <functional>

#include "colossal/comm/world.h"

namespace colossal::comm {

struct RankOptions {
  bool collectives_off =
      false;  ///< collectives do nothing (outputs hold this rank's own input): parity tests must then fail
  std::chrono::milliseconds watchdog{30000};
  std::chrono::milliseconds notice{10000};
};

/// Runs fn once per rank, each in a thread of its own with its own World. Rethrows the first exception thrown by any
/// rank, not the lowest rank's: peers of a failed rank fail too, and theirs is not the cause. Its message carries `
/// (rank r of n)`.
void run_ranks(int n, const std::function<void(World&)>& fn, const RankOptions& options = {});

}  // namespace colossal::comm
