// Notices that a rank never came to a collective, and says which rank, which group and which call.
#pragma once
#include <array>
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

#include "colossal/comm/backends/calls.h"
#include "colossal/comm/group.h"
#include "colossal/comm/store.h"
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
/// Numbers count the collectives of a group from 1. Sends and receives are watched too, but not numbered.
/// A rank that is behind because it waits in another group is not blamed: the watchdog of that group finds the cause.
/// Cost: two clock readings and a lock per call; no communication but the thread's.
class Watchdog {
 public:
  struct Options {
    std::chrono::milliseconds limit{30000};
    int world_rank = 0, world_size = 1;
  };
  /// `abort` ends the groups of this rank; called once, on the watchdog's thread. `store` serves this object alone.
  Watchdog(std::shared_ptr<Store> store, const Options& options, std::function<void(const std::string&)> abort);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// `key` is the same on all members and no other group's; `ranks` are the members' ranks in the world.
  int add_group(const std::string& name, const std::string& key, const std::vector<int>& ranks, int rank);
  struct Call {
    int group = 0;
    Collective collective = Collective::Barrier;
    int64_t bytes = 0;
    int peer = -1;  ///< of Send and Recv
    Phase phase = Phase::Other;
  };
  using Ticket = uint64_t;
  Ticket begin(const Call& call);
  /// The call goes on asynchronously: `work` is asked whether it is done.
  void follow(Ticket ticket, std::shared_ptr<Work> work);
  void end(Ticket ticket);
  /// Ends the thread; nothing is watched from now on.
  void stop();
  /// Throws the verdict, if there is one.
  void throw_verdict();

 private:
  using Clock = std::chrono::steady_clock;
  struct Record {
    Call call;
    uint64_t number = 0;
    Clock::time_point start;
    std::shared_ptr<Work> work;
  };
  struct Watched {
    std::string name, key;
    std::vector<int> ranks;
    int rank = 0;
    uint64_t calls = 0, published = 0;
    Record last;
  };
  void run();
  bool look();
  void publish();
  void drop_finished();
  std::optional<Record> stalled(std::chrono::milliseconds age);
  std::optional<std::string> diagnose(const Record& record, bool insist);
  std::string describe(const Record& record) const;
  void conclude(const std::string& verdict);

  std::shared_ptr<Store> store_;
  const Options options_;
  const std::function<void(const std::string&)> abort_;
  const std::chrono::milliseconds interval_;
  mutable std::mutex mutex_;
  std::condition_variable stop_;
  std::vector<Watched> groups_;
  std::map<Ticket, Record> under_way_;
  Ticket tickets_ = 0;
  std::optional<std::string> verdict_;
  bool announced_stall_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace colossal::comm
