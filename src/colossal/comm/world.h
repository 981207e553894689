// All ranks of a run as one of them sees it. Made by launch() in a process of its own, by run_ranks() in a thread of a
// test, and by make_idle_world() without any peer.
//
//   const auto world = comm::launch({});
//   const auto group = world->make_group("first two", {0, 1});      // asked for by ranks 0 and 1 alone
//   group->all_reduce(x, comm::Reduce::Sum).wait();
//   world->traffic().total("first two", "all_reduce").bytes;        // what this rank has sent by it
//   const auto busy = world->busy("saving a checkpoint");           // nobody is blamed for waiting for this rank
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/group.h"
#include "colossal/comm/traffic.h"

namespace colossal::comm {

/// Ranks wait for one that does not come, or no longer do. Nothing is ended by it.
struct Stall {
  std::string text;       ///< which rank is late for which call, or is busy with what; when it is over, that it is
  bool seen_here = true;  ///< noticed by this rank, which is the one to tell people; else rank 0 hears of it
  bool is_over = false;
  double seconds = 0;  ///< how long it has lasted
};

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  ///< among the ranks of this host
  virtual int local_size() const = 0;
  /// The group of `ranks` (of the world, in group order), decorated with counting and the watchdog. Collective among
  /// exactly those ranks. One rank: a null group, which communicates nothing. `name` appears in counters and errors;
  /// the same set of ranks may be asked for under several names. Between devices groups of the same ranks share one
  /// connection, which may run their calls one after another; a `channel` has one of its own (DeviceLinks), for calls
  /// that must not queue up behind those of other groups.
  virtual std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                            const std::string& channel = "") = 0;
  virtual Traffic& traffic() = 0;
  /// As long as the result lives, this rank does something that is no collective and may take long: "saving a
  /// checkpoint". Ranks that wait for it meanwhile are patient as long as its process is alive; what it waits for
  /// itself is watched as ever. Cost: a lock; the watchdog's thread announces it.
  [[nodiscard]] virtual std::shared_ptr<void> busy(const std::string& what) = 0;
  /// `listener` is told of stalls, from a thread of the world's own; null: nobody is. Returns when the one before is
  /// not being told any more. A listener must not call this. A world of one rank has no stalls.
  virtual void on_stall(std::function<void(const Stall&)> listener) = 0;
  /// Name of the transport that groups of this world use: "threads", "shm", "gloo", "nccl"; "none" of one rank.
  virtual std::string backend() const = 0;
};

}  // namespace colossal::comm
