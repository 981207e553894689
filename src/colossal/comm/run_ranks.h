// Ranks as threads of one process: the harness of every parallel test. No ports, no processes, a debugger works.
//
//   comm::run_ranks(4, [](comm::World& world) {
//     comm::Mesh mesh(world, {comm::Mesh::batch("data", 2), {"tensor", 2}});
//     EXPECT_EQ(comm::sum(mesh.all(), world.rank()), 6);
//   });
#pragma once
#include <chrono>
#include <functional>

#include "colossal/comm/world.h"

namespace colossal::comm {

struct RankOptions {
  /// Collectives do nothing, and outputs hold what this rank alone knows (IdleGroup): parity tests must then fail.
  bool collectives_off = false;
  std::chrono::milliseconds watchdog{30000};
  std::chrono::milliseconds notice{10000};
};

/// Runs fn once per rank, each in a thread of its own with its own World. Rethrows the first exception thrown by any
/// rank, not the lowest rank's: peers of a failed rank fail too, and theirs is not the cause. Its message ends in
/// "(rank r of n)".
void run_ranks(int n, const std::function<void(World&)>& fn, const RankOptions& options = {});

}  // namespace colossal::comm
