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

/// Thread safety: one thread.
class LateRanks {
 public:
  /// A call that does not come to an end.
  struct Wait {
    std::string group, key;  ///< name of the group, and its key in the announcements
    std::vector<int> ranks;  ///< of the world, in group order
    int rank = 0;            ///< that waits, within the group
    uint64_t number = 0;     ///< of the collective; 0: a transfer with `peer`
    int peer = -1;
    bool sends = false;
    bool is_comparable = true;  ///< equal calls have equal texts on all ranks
    std::string call, phase;    ///< "all_reduce #17 of 4096 bytes", "backward"
    /// "all_reduce #17 of 4096 bytes on group "tensor" (backward)"
    std::string text() const;
  };
  struct Finding {
    std::string text;    ///< empty: it cannot be said yet, the late rank itself waits elsewhere
    int busy_rank = -1;  ///< late because this one is busy, and alive: nobody's fault
    uint64_t episode = 0;
  };
  /// A busy rank whose beat does not change for `limit` is not alive.
  LateRanks(std::shared_ptr<Announcements> announcements, std::chrono::milliseconds limit)
      : announcements_(std::move(announcements)), limit_(limit) {}

  /// `is_final`: the wait is given up; words it so. `insist`: blames also a rank that itself waits elsewhere.
  /// Cost: a request or two to the store for each rank of the group, as far as the first that is late.
  Finding find(const Wait& wait, bool is_final, bool insist);

 private:
  using Clock = std::chrono::steady_clock;
  /// Whose business it is that a rank does not come: nobody's (it may be blamed), or that of a busy rank.
  struct Excuse {
    int busy_rank = -1;
    Announcements::Busy busy;
    bool waits_elsewhere = false;
    std::string doubt;  ///< why a rank that says it is busy is not excused
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
  std::map<int, Pulse> pulses_;  // of busy ranks that were asked for
};

}  // namespace colossal::comm
