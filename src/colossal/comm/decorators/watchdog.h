// Notices that a rank did not join a collective, and reports the rank, the group and the call.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "colossal/comm/decorators/decorator.h"
#include "colossal/comm/decorators/late_ranks.h"
#include "colossal/comm/group.h"
#include "colossal/comm/traffic.h"

namespace colossal::comm {

/// A watchdog for the calls of one rank. It records calls as they start and end. Its thread publishes the last call of
/// each group to the store, about once a second, and looks for calls that run for longer than the limit. For such a
/// call it reads what the peers published, names the late rank, and publishes that verdict. Every rank's watchdog then
/// ends its groups with the verdict, so that all waiting calls throw
///
///   [watchdog] rank 2 of 4 never called all_reduce #17 of 4096 bytes on group "tensor" (backward); its last call there
///   was all_gather #16; waited 30 s
///
/// Long before that, after `notice`, one of the waiting ranks reports the late rank to its own listener and to rank
/// 0's, without ending anything. It reports again if the call finishes after all.
///
/// Numbers count the collectives of a group from 1. Sends and receives are watched too, but not numbered. A rank that
/// is late because it waits in another group is not blamed: the watchdog of that group finds the cause. Nor is a rank
/// that announced itself as busy, as long as its own watchdog still runs. In that case the limit starts again, as it
/// does if this process itself was stopped for half of the limit.
/// Cost: two clock readings and a lock per call; only the thread communicates.
class Watchdog {
 public:
  struct Options {
    std::chrono::milliseconds limit{30000};   ///< time in a call until the verdict
    std::chrono::milliseconds notice{10000};  ///< time in a call until the late rank is reported
    int world_rank = 0, world_size = 1;
  };
  /// `abort` ends the groups of this rank; it is called once, on the watchdog's thread. `store` serves this object
  /// alone.
  Watchdog(std::shared_ptr<Store> store, const Options& options, std::function<void(const std::string&)> abort);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// `key` is the same on all members and unique among groups; `ranks` are the members' ranks in the world.
  int add_group(const std::string& name, const std::string& key, const std::vector<int>& ranks, int rank);
  /// The recorded properties of a call.
  struct Watched {
    int group = 0;
    Collective collective = Collective::Barrier;
    int64_t bytes = 0;
    int peer = -1;  ///< other rank of Send and Recv
    Phase phase = Phase::Other;
  };
  using Ticket = uint64_t;
  /// Records the start of a call. Errors: as check().
  Ticket begin(const Watched& call);
  /// Marks the call as asynchronous: it ends when `work` is done.
  void follow(Ticket ticket, std::shared_ptr<Work> work);
  void end(Ticket ticket);
  /// Announces that this rank is busy with `what`, until leave() is called with the result.
  uint64_t enter(const std::string& what);
  void leave(uint64_t episode);
  /// See World::on_stall.
  void set_listener(std::function<void(const Stall&)> listener);
  /// Ends the thread; after that nothing is watched.
  void stop();
  /// Throws the verdict if this rank knows one.
  void check() const;
  /// Throws the verdict if any rank has published one: queries the store. Does nothing if the store is gone.
  void throw_verdict();

 private:
  using Clock = std::chrono::steady_clock;
  struct Record {
    Watched call;
    uint64_t number = 0;
    Clock::time_point start;
    std::shared_ptr<Work> work = nullptr;
    // later than the start if a busy rank was waited for, or if all ranks were stopped
    Clock::time_point patient_since = start;
    int for_busy = -1;  // busy rank that is waited for; -1 = none
  };
  struct WatchedRanks {
    std::string name, key;
    std::vector<int> ranks;
    int rank = 0;
    uint64_t calls = 0, published = 0;
    Record last;
  };
  struct Doing {  // argument of enter()
    std::string what;
    Clock::time_point start;
  };
  struct Announced {  // a stall that this rank has reported and that is not over
    Ticket ticket = 0;
    Clock::time_point start;
    std::string call, busy_with;
  };
  void run();
  bool look();
  void drop_finished();
  void publish();
  std::optional<Announcements::Busy> busy();
  void publish_busy();
  void pass_on_news();
  void notice();
  void judge();
  std::optional<std::pair<Ticket, Record>> stalled(std::chrono::milliseconds age);
  LateRanks::Wait wait_of(const Record& record);
  std::string describe(const Record& record) const;
  void tell(const Stall& stall);
  void conclude(const std::string& verdict);

  const std::shared_ptr<Announcements> announcements_;
  const Options options_;
  const std::function<void(const std::string&)> abort_;
  const std::chrono::milliseconds interval_;
  mutable std::mutex mutex_;
  std::condition_variable stop_;
  std::vector<WatchedRanks> groups_;
  std::map<Ticket, Record> under_way_;
  Ticket tickets_ = 0;
  std::map<uint64_t, Doing> doing_;  // activities by episode; the last one is announced
  uint64_t episodes_ = 0;
  std::optional<std::string> verdict_;
  bool stopping_ = false;
  std::mutex listener_mutex_;  // held while the listener runs
  std::function<void(const Stall&)> listener_;
  // Only the watchdog's thread uses the members below:
  LateRanks late_ranks_;
  Announcements::Waiting announced_waiting_;
  bool announced_busy_ = false;
  uint64_t beat_ = 0;
  std::optional<Announced> announced_stall_;
  Clock::time_point went_on_;  // end of the last reported stall
  Ticket examined_ = 0;        // call that notice() examined last
  bool speaks_ = false;        // true if this rank reports it
  Clock::time_point next_examination_;
  std::thread thread_;
};

/// A group that reports every call to the watchdog of its rank. After a verdict every call and every wait throws
/// Error("watchdog", verdict), whatever the transport reports.
class WatchedGroup : public GroupDecorator {
 public:
  /// `handle` is the result of watchdog->add_group. `traffic` provides the phase and must outlive this.
  WatchedGroup(std::shared_ptr<Group> inner, std::shared_ptr<Watchdog> watchdog, int handle, const Traffic& traffic)
      : GroupDecorator(std::move(inner)), watchdog_(std::move(watchdog)), handle_(handle), traffic_(traffic) {}

  Work issue(const Call& call) override;

 private:
  const std::shared_ptr<Watchdog> watchdog_;
  const int handle_;
  const Traffic& traffic_;
};

}  // namespace colossal::comm
