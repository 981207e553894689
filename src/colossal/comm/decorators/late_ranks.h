// Finds the rank that is late for a call, from what the ranks announced.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/decorators/announcements.h"

namespace colossal::comm {

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
