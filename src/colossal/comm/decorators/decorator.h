// What decorators of a group have in common.
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "colossal/comm/group.h"

namespace colossal::comm {

/// Bears the name and ranks of the group within. What a decorator is for, it does in issue().
class Decorator : public Group {
 public:
  explicit Decorator(std::shared_ptr<Group> inner) : inner_(std::move(inner)) {}
  const std::string& name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

 protected:
  const std::shared_ptr<Group> inner_;
};

}  // namespace colossal::comm
