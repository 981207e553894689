// Notices that a rank never came to a collective, and says which rank, which group and which call.
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

#include "colossal/comm/decorators/late_ranks.h"
#include "colossal/comm/group.h"
#include "colossal/comm/traffic.h"

namespace colossal::comm {

/// One per rank. Calls are recorded as they begin and end; a thread publishes the last one of each group to the store,
/// about once a second, and looks for calls that are under way for longer than the limit. It then reads what the peers
/// published, names the one that is behind, and publishes that verdict; every rank's watchdog ends its groups with it,
/// so that all waiters throw
///
///   [watchdog] rank 2 of 4 never called all_reduce #17 of 4096 bytes on group "tensor" (backward); its last call there
///   was all_gather #16; waited 30 s
///
/// Long before that, after `notice`, one of the waiting ranks says the same to its listener and to rank 0's, without
/// ending anything, and again when the call came to an end after all.
///
/// Numbers count the collectives of a group from 1. Sends and receives are watched too, but not numbered.
/// A rank that is behind because it waits in another group is not blamed: the watchdog of that group finds the cause.
/// Nor is one that said it is busy, as long as its own watchdog still runs: the limit begins anew behind it, as it does
/// when this process itself was stopped for half of it.
/// Cost: two clock readings and a lock per call; no communication but the thread's.
class Watchdog {
 public:
  struct Options {
    std::chrono::milliseconds limit{30000};
    std::chrono::milliseconds notice{10000};
    int world_rank = 0, world_size = 1;
  };
  /// `abort` ends the groups of this rank; called once, on the watchdog's thread. `store` serves this object alone.
  Watchdog(std::shared_ptr<Store> store, const Options& options, std::function<void(const std::string&)> abort);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// `key` is the same on all members and no other group's; `ranks` are the members' ranks in the world.
  int add_group(const std::string& name, const std::string& key, const std::vector<int>& ranks, int rank);
  /// What is remembered of a call.
  struct Watched {
    int group = 0;
    Collective collective = Collective::Barrier;
    int64_t bytes = 0;
    int peer = -1;  ///< of Send and Recv
    Phase phase = Phase::Other;
  };
  using Ticket = uint64_t;
  /// Errors: as check().
  Ticket begin(const Watched& call);
  /// The call goes on asynchronously: it ends when `work` says that it is done.
  void follow(Ticket ticket, std::shared_ptr<Work> work);
  void end(Ticket ticket);
  /// From here to leave() with the result, this rank is busy with `what`.
  uint64_t enter(const std::string& what);
  void leave(uint64_t episode);
  /// See World::on_stall.
  void set_listener(std::function<void(const Stall&)> listener);
  /// Ends the thread; nothing is watched from now on.
  void stop();
  /// Throws the verdict, if this rank knows of one.
  void check() const;
  /// Throws the verdict, if there is one anywhere: asks the store.
  void throw_verdict();

 private:
  using Clock = std::chrono::steady_clock;
  struct Record {
    Watched call;
    uint64_t number = 0;
    Clock::time_point start;
    std::shared_ptr<Work> work = nullptr;
    // later than the start once a busy rank was waited for, or all stood still
    Clock::time_point patient_since = start;
    int for_busy = -1;  // that rank
  };
  struct WatchedRanks {
    std::string name, key;
    std::vector<int> ranks;
    int rank = 0;
    uint64_t calls = 0, published = 0;
    Record last;
  };
  struct Doing {  // what enter() was told
    std::string what;
    Clock::time_point start;
  };
  struct Announced {  // a stall that this rank has told of and that is not over
    Ticket ticket = 0;
    Clock::time_point start;
    std::string call;
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
  std::map<uint64_t, Doing> doing_;  // by episode; the last one is what is announced
  uint64_t episodes_ = 0;
  std::optional<std::string> verdict_;
  bool stopping_ = false;
  std::mutex listener_mutex_;  // held while the listener runs
  std::function<void(const Stall&)> listener_;
  // Used by the watchdog's thread only:
  LateRanks late_ranks_;
  Announcements::Waiting announced_waiting_;
  bool announced_busy_ = false;
  uint64_t beat_ = 0;
  std::optional<Announced> announced_stall_;
  Clock::time_point went_on_;  // when the last stall that was told of was over
  Ticket examined_ = 0;        // the call that notice() looked at last,
  bool speaks_ = false;        // whether it is this rank that speaks of it,
  Clock::time_point next_examination_;
  std::thread thread_;
};

}  // namespace colossal::comm
