// Messages that the watchdogs of a run exchange through the store.
#pragma once
#include <cstdint>
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

}  // namespace colossal::comm
