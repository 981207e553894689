// One rank of a run whose other ranks do not exist.
//
//   const auto world = comm::make_simulated_world(5, 64);              // rank 5 of 64
//   comm::Mesh mesh(*world, {comm::Mesh::batch("data", 8), {"tensor", 8}});
//   mesh.group("tensor").all_reduce(x, comm::Reduce::Sum).wait();     // returns at once
//   world->traffic().total("tensor", "all_reduce").bytes;             // what 64 ranks would make this one send
#pragma once
#include <memory>
#include <string>

#include "colossal/comm/backends/backend.h"
#include "colossal/comm/world.h"

namespace colossal::comm {

/// A group that sends nothing. It serves groups of one rank, ranks without peers (make_simulated_world), and ranks
/// whose collectives are switched off, with which tests prove that they would notice missing communication.
///
/// It has size() ranks that never communicate. Outputs hold only this rank's own data: all_gather repeats its input,
/// reduce_scatter keeps its own slice, and all_to_all keeps its input as far as it fits (zeros beyond). A broadcast or
/// recv from another rank gives zeros. With size 1 these are the right results of every collective. Arguments are
/// checked as in every other group. Tensors may be on any device, including the meta device.
class IdleGroup : public Backend {
 public:
  IdleGroup(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Work issue(const Call& call) override;
  void abort(const std::string&) noexcept override {}

 private:
  const std::string name_;
  const int rank_, size_;
};

/// Returns a world of `size` ranks on one host, as rank `rank` sees it. Nothing is exchanged and no call waits for a
/// peer. Tensors may be on any device, including the meta device. Results have the shapes of Group's contract and hold
/// only this rank's own data (IdleGroup). Groups count their traffic as usual. backend() is "idle". RecordingWorld
/// (decorators/recording.h) records the calls. Errors: throws Error("comm", ...) unless `rank` is in [0, size).
std::unique_ptr<World> make_simulated_world(int rank, int size);

}  // namespace colossal::comm
