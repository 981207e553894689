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
  /// makes collectives do nothing: outputs hold only this rank's own data (IdleGroup), so parity tests must fail
  bool collectives_off = false;
  std::chrono::milliseconds watchdog{30000};  ///< time in a collective until the run ends with an error
  std::chrono::milliseconds notice{10000};    ///< time in a collective until World::on_stall reports the late rank
};

/// Runs `fn` once per rank, each in a separate thread with its own World. Rethrows the exception that was thrown
/// first, not the lowest rank's, because peers of a failed rank fail too and their errors are not the cause. Its
/// message ends in "(rank r of n)".
void run_ranks(int n, const std::function<void(World&)>& fn, const RankOptions& options = {});

}  // namespace colossal::comm
