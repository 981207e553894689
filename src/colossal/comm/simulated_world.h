// One rank of a run whose other ranks do not exist.
//
//   const auto world = comm::make_simulated_world(5, 64);              // rank 5 of 64
//   comm::Mesh mesh(*world, {comm::Mesh::batch("data", 8), {"tensor", 8}});
//   mesh.group("tensor").all_reduce(x, comm::Reduce::Sum).wait();     // returns at once
//   world->traffic().total("tensor", "all_reduce").bytes;             // what 64 ranks would make this one send
#pragma once
#include <memory>

#include "colossal/comm/world.h"

namespace colossal::comm {

/// Returns a world of `size` ranks on one host, as rank `rank` sees it. Nothing is exchanged and no call waits for a
/// peer. Tensors may be on any device, including the meta device. Results have the shapes of Group's contract and hold
/// only this rank's own data (IdleGroup). Groups count their traffic as usual. backend() is "idle". RecordingWorld
/// (decorators/recording.h) records the calls. Errors: throws Error("comm", ...) unless `rank` is in [0, size).
std::unique_ptr<World> make_simulated_world(int rank, int size);

}  // namespace colossal::comm
