// Base classes of decorators of groups and worlds: they forward everything that a decorator does not override.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "colossal/comm/world.h"

namespace colossal::comm {

/// A group with the name and ranks of the inner group. A decorator overrides issue().
class GroupDecorator : public Group {
 public:
  explicit GroupDecorator(std::shared_ptr<Group> inner) : inner_(std::move(inner)) {}
  const std::string& name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

 protected:
  const std::shared_ptr<Group> inner_;
};

/// A world that forwards every call to the inner world, which must outlive it.
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
