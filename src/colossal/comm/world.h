// All ranks of a run, as seen by one of them. launch() makes a World per process, run_ranks() one per thread (tests,
// measurements), and make_simulated_world() one without any peer.
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

/// A report that ranks wait for a late rank, or that this wait is over. The report ends no call; only the watchdog's
/// limit does (LaunchOptions::watchdog).
struct Stall {
  std::string text;       ///< names the late rank and the call that it has not made, or what it is busy with; after the
                          ///< stall, says that it is over
  bool seen_here = true;  ///< true on the rank that noticed the stall and should report it; false on rank 0 for a
                          ///< report of another rank
  bool is_over = false;
  double seconds = 0;  ///< duration of the stall so far
  /// What the late rank is, or was, busy with (World::busy); "" = it announced nothing.
  std::string busy_with{};
};

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  ///< index among the ranks of this host
  virtual int local_size() const = 0;
  /// Makes the group of `ranks` (ranks of the world, in group order), decorated with counting and the watchdog.
  /// Collective among exactly those ranks. For one rank, returns a null group, which communicates nothing. `name`
  /// appears in counters and errors; the same set of ranks may have groups under several names. Between devices,
  /// groups of the same ranks share one connection, which may run their calls one after another. A `channel` has a
  /// separate connection (DeviceLinks), for calls that must not queue after calls of other groups; "" = shared.
  virtual std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                            const std::string& channel = "") = 0;
  virtual Traffic& traffic() = 0;
  /// Announces that this rank is busy with something that is not a collective and may take long, e.g. "saving a
  /// checkpoint". The announcement holds until the result is destroyed. During that time other ranks wait for this one
  /// as long as its process is alive. Calls in which this rank waits stay under the usual watch. Cost: a lock; the
  /// watchdog's thread announces it.
  [[nodiscard]] virtual std::shared_ptr<void> busy(const std::string& what) = 0;
  /// Calls `listener` for each start and end of a stall, from a thread of this world; null = no listener. Returns
  /// after the last call of the previous listener has ended. A listener must not call this function. A world of one
  /// rank has no stalls.
  virtual void on_stall(std::function<void(const Stall&)> listener) = 0;
  /// Returns the transport of this world's groups: "threads", "shm", "gloo" or "nccl"; "none" for one rank, "idle" for
  /// make_simulated_world(), "off" for run_ranks() with collectives_off.
  virtual std::string backend() const = 0;
};

}  // namespace colossal::comm
