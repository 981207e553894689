// One rank of a run whose other ranks are not there.
//
//   const auto world = comm::make_idle_world(5, 64);                  // rank 5 of 64
//   comm::Mesh mesh(*world, {comm::Mesh::batch("data", 8), {"tensor", 8}});
//   mesh.group("tensor").all_reduce(x, comm::Reduce::Sum).wait();     // returns at once
//   world->traffic().total("tensor", "all_reduce").bytes;             // what 64 ranks would make this one send
#pragma once
#include <memory>

#include "colossal/comm/world.h"

namespace colossal::comm {

/// A world of `size` ranks on one host, as rank `rank` sees it, in which nothing is exchanged and no call waits for a
/// peer. Tensors may be on any device, the meta device included. Results have the shape that the contract of Group
/// says, and hold what this rank alone knows (IdleGroup); groups count their traffic as ever. backend() is "idle".
/// RecordingWorld (decorators/recording.h) writes down what is called. Errors: throws Error("comm", ...) unless `rank`
/// is in [0, size).
std::unique_ptr<World> make_idle_world(int rank, int size);

}  // namespace colossal::comm
