#include "support/decorated_world.h"

#include <ATen/ATen.h>

#include "colossal/comm/backends/idle_groups.h"

namespace colossal::test {
namespace {

/// Zeros arrive in place of one message: of those that the rank sends in all such groups, the one that
/// `left` others go before.
class LosesATransfer final : public comm::GroupDecorator {
 public:
  LosesATransfer(std::shared_ptr<comm::Group> inner, std::shared_ptr<int> left)
      : GroupDecorator(std::move(inner)), left_(std::move(left)) {}
  comm::Work issue(const comm::Call& call) override {
    if (call.collective != comm::Collective::Send) return inner_->issue(call);
    const bool is_lost = (*left_)-- == 0;
    if (!is_lost) return inner_->issue(call);
    zeros_ = at::zeros_like(*call.in);
    return inner_->send(zeros_, call.peer);
  }

 private:
  const std::shared_ptr<int> left_;
  at::Tensor zeros_;  // lives as long as the transfer
};

/// Sends and receives as they are, collectives those of a group that never meets.
class TransfersAlone final : public comm::GroupDecorator {
 public:
  explicit TransfersAlone(const std::shared_ptr<comm::Group>& group)
      : GroupDecorator(std::make_shared<comm::IdleGroup>(group->name(), group->rank(), group->size())), group_(group) {}
  comm::Work issue(const comm::Call& call) override {
    return call.is_transfer() ? group_->issue(call) : inner_->issue(call);
  }

 private:
  const std::shared_ptr<comm::Group> group_;
};

}  // namespace

DecoratedWorld losing_a_transfer(comm::World& world, int lost, const std::string& axis) {
  const auto left = std::make_shared<int>(lost);
  return {world,
          [left, axis, loses = world.rank() == 0](std::shared_ptr<comm::Group> group) -> std::shared_ptr<comm::Group> {
            if (!loses || group->name().rfind(axis + " ", 0) != 0) return group;
            return std::make_shared<LosesATransfer>(std::move(group), left);
          }};
}

DecoratedWorld without_collectives(comm::World& world) {
  return {world, [](std::shared_ptr<comm::Group> group) { return std::make_shared<TransfersAlone>(group); }};
}

}  // namespace colossal::test
