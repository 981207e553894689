// Reports every call of a group to the watchdog of its rank.
#pragma once
#include <memory>

#include "colossal/comm/decorators/decorator.h"
#include "colossal/comm/decorators/watchdog.h"

namespace colossal::comm {

/// A watched group. After a verdict every call and every wait throws Error("watchdog", verdict), whatever the
/// transport reports.
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
