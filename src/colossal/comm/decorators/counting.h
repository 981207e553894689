// Counts the payload that a group sends, by the ring formulas of Group's contract.
#pragma once
#include <memory>

#include "colossal/comm/decorators/decorator.h"
#include "colossal/comm/traffic.h"

namespace colossal::comm {

/// Adds one entry to `traffic` per call, under the group's name, before the call is made. Arguments are checked first,
/// so a refused call is not counted. send counts numel(x); recv and barrier only count calls. `traffic` must
/// outlive the group.
class CountingGroup : public GroupDecorator {
 public:
  CountingGroup(std::shared_ptr<Group> inner, Traffic& traffic) : GroupDecorator(std::move(inner)), traffic_(traffic) {}

  Work issue(const Call& call) override {
    check(*this, call);
    const Payload sent = sent_by(*this, call);
    traffic_.add(name(), to_string(call.collective), sent.elements, sent.bytes);
    return inner_->issue(call);
  }

 private:
  Traffic& traffic_;
};

}  // namespace colossal::comm
