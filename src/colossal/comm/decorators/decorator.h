// What decorators of groups and of worlds have in common: they are what they decorate, but for what they override.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "colossal/comm/world.h"

namespace colossal::comm {

/// Bears the name and ranks of the group within. What a decorator is for, it does in issue().
class GroupDecorator : public Group {
 public:
  explicit GroupDecorator(std::shared_ptr<Group> inner) : inner_(std::move(inner)) {}
  const std::string& name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

 protected:
  const std::shared_ptr<Group> inner_;
};

/// Asks the world within, which must outlive it, for everything.
class WorldDecorator : public World {
 public:
  explicit WorldDecorator(World& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                    const std::string& channel = "") override {
    return inner_.make_group(name, ranks, channel);
  }
  Traffic& traffic() override { return inner_.traffic(); }
  std::shared_ptr<void> busy(const std::string& what) override { return inner_.busy(what); }
  void on_stall(std::function<void(const Stall&)> listener) override { inner_.on_stall(std::move(listener)); }
  std::string backend() const override { return inner_.backend(); }

 private:
  World& inner_;
};

}  // namespace colossal::comm
