#include "colossal/train/stall_records.h"

#include <utility>

namespace colossal::train {

StallRecords::StallRecords(comm::World& world, const Log& log) : world_(world), log_(log) {
  world_.on_stall([this](const comm::Stall& stall) { hear(stall); });
}

StallRecords::~StallRecords() { world_.on_stall(nullptr); }

double StallRecords::take_seconds() {
  const std::lock_guard lock(mutex_);
  return std::exchange(seconds_, 0);
}

void StallRecords::hear(const comm::Stall& stall) {
  if (stall.is_over) {
    const std::lock_guard lock(mutex_);
    seconds_ += stall.seconds;
  }
  log_.write(stall.seen_here ? LogLevel::kWarning : LogLevel::kDebug, "waiting: " + stall.text);
}

}  // namespace colossal::train
