// Finds the rank that is late for a call, from what the ranks announced: messages that the watchdogs of a run exchange
// through the store.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/store.h"
#include "colossal/comm/world.h"

namespace colossal::comm {

/// A rank calls the setters only for itself. Ranks are ranks of the world unless said otherwise. Every member
/// makes one or two requests to the store and throws what the store throws. Thread safety: only one thread may call
/// hear().
class Announcements {
 public:
  explicit Announcements(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  /// The last collective that a rank called in a group (by its rank there), numbered from 1; 0 = none.
  struct Called {
    uint64_t number = 0;
    std::string text = "none";
  };
  void set_called(const std::string& group, int rank, const Called& called);
  Called called(const std::string& group, int rank);

  /// Whether a rank has been waiting in a call for a while, and the busy rank that it waits for (-1 = none).
  struct Waiting {
    bool waits = false;
    int for_busy = -1;
    bool operator==(const Waiting&) const = default;
  };
  void set_waiting(int rank, const Waiting& waiting);
  Waiting waiting(int rank);

  /// An activity of a rank outside of calls (World::busy). The beat changes as long as its process is alive.
  struct Busy {
    uint64_t beat = 0, episode = 0;  ///< counter of the process's signs of life; number of the activity
    int64_t seconds = 0;             ///< seconds since it started
    std::string what;
  };
  /// Announces what a rank is busy with; nothing = it is no longer busy.
  void set_busy(int rank, const std::optional<Busy>& busy);
  std::optional<Busy> busy(int rank);

  /// Returns true for the first rank that claims the key, so that one rank speaks for all. If a stranger claims first,
  /// no rank gets true, so correctness must not depend on it.
  bool claim(const std::string& key);
  /// Sends a stall report to the listener, which is rank 0.
  void say(const Stall& stall);
  /// Returns the reports that were sent since the last call.
  std::vector<Stall> hear();

  /// Writes the verdict if there is none; the first verdict then holds for all ranks. If several ranks write at the
  /// same moment, each rank may read another one.
  void offer_verdict(const std::string& verdict);
  std::optional<std::string> verdict();

 private:
  const std::shared_ptr<Store> store_;
  int64_t heard_ = 0;
};

/// Finds late ranks. Thread safety: one thread.
class LateRanks {
 public:
  /// A call that does not finish.
  struct Wait {
    std::string group, key;  ///< name of the group, and its key in the announcements
    std::vector<int> ranks;  ///< ranks of the world, in group order
    int rank = 0;            ///< rank that waits, within the group
    uint64_t number = 0;     ///< number of the collective; 0 = a transfer with `peer`
    int peer = -1;
    bool sends = false;
    bool is_comparable = true;  ///< equal calls have equal texts on all ranks
    std::string call, phase;    ///< "all_reduce #17 of 4096 bytes", "backward"
    /// "all_reduce #17 of 4096 bytes on group "tensor" (backward)"
    std::string text() const;
  };
  struct Finding {
    std::string text;         ///< result; empty if it is not known, because the late rank itself waits elsewhere
    int busy_rank = -1;       ///< busy rank, still alive, that causes the delay, so that no rank is blamed; -1 = none
    uint64_t episode = 0;     ///< number of the activity of `busy_rank` (Announcements::Busy)
    std::string busy_with{};  ///< that activity (Announcements::Busy::what)
  };
  /// A busy rank whose beat does not change for `limit` counts as dead.
  LateRanks(std::shared_ptr<Announcements> announcements, std::chrono::milliseconds limit)
      : announcements_(std::move(announcements)), limit_(limit) {}

  /// Finds the late rank. `is_final` means that the wait is given up, and changes the wording. `insist` also blames a
  /// rank that itself waits elsewhere.
  /// Cost: one or two requests to the store for each rank of the group, up to the first late one.
  Finding find(const Wait& wait, bool is_final, bool insist);

 private:
  using Clock = std::chrono::steady_clock;
  /// The reason not to blame a late rank: it or the rank that it waits for is busy, or it waits elsewhere.
  struct Excuse {
    int busy_rank = -1;  ///< -1 = none
    Announcements::Busy busy;
    bool waits_elsewhere = false;
    std::string doubt;  ///< reason why a rank that announced itself as busy is not excused
  };
  Excuse excuse(int rank, bool insist);
  bool is_alive(int rank, const Announcements::Busy& busy);
  Finding excused(const Wait& wait, const Excuse& excuse) const;

  const std::shared_ptr<Announcements> announcements_;
  const std::chrono::milliseconds limit_;
  struct Pulse {
    uint64_t beat = 0;
    Clock::time_point seen;
  };
  std::map<int, Pulse> pulses_;  // beats of busy ranks that were queried
};

}  // namespace colossal::comm
