// What the watchdogs of a run tell each other through the store.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/store.h"
#include "colossal/comm/world.h"

namespace colossal::comm {

/// Whoever sets, sets for itself; ranks are of the world unless said otherwise. Every member is one or two requests to
/// the store and throws what the store throws. Thread safety: hear() belongs to one thread.
class Announcements {
 public:
  explicit Announcements(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  /// The last collective that a rank of a group (by its rank there) called, numbered from 1; 0: none.
  struct Called {
    uint64_t number = 0;
    std::string text = "none";
  };
  void set_called(const std::string& group, int rank, const Called& called);
  Called called(const std::string& group, int rank);

  /// Whether a rank has been waiting in a call for a while, and if for one that is busy, for which (else -1).
  struct Waiting {
    bool waits = false;
    int for_busy = -1;
    bool operator==(const Waiting&) const = default;
  };
  void set_waiting(int rank, const Waiting& waiting);
  Waiting waiting(int rank);

  /// What a rank does that is no call (World::busy). The beat changes as long as its process is alive.
  struct Busy {
    uint64_t beat = 0, episode = 0;
    int64_t seconds = 0;  ///< since it began
    std::string what;
  };
  void set_busy(int rank, const std::optional<Busy>& busy);
  std::optional<Busy> busy(int rank);

  /// True for the first of all ranks that asks for it: one of them speaks for all. Nobody does where a stranger asks
  /// first, so that nothing may hang on it.
  bool claim(const std::string& key);
  /// To all who listen, which is rank 0.
  void say(const Stall& stall);
  /// What has been said since the last time.
  std::vector<Stall> hear();

  /// The first verdict is everybody's; of several at the same moment each rank may see another one.
  void offer_verdict(const std::string& verdict);
  std::optional<std::string> verdict();

 private:
  const std::shared_ptr<Store> store_;
  int64_t heard_ = 0;
};

}  // namespace colossal::comm
