#include "support/decorated_world.h"

#include <ATen/ATen.h>

#include "colossal/comm/simulated_world.h"

namespace colossal::test {
namespace {

enum class Counted { Sends, AllMessages };

/// A group that replaces one message by zeros. `left`, which all such groups of the rank share, is the number of
/// counted messages before that one.
class LosesAMessage final : public comm::GroupDecorator {
 public:
  LosesAMessage(std::shared_ptr<comm::Group> inner, Counted counted, std::shared_ptr<int> left)
      : GroupDecorator(std::move(inner)), counted_(counted), left_(std::move(left)) {}
  comm::Work issue(const comm::Call& call) override {
    const bool counts = counted_ == Counted::Sends ? call.collective == comm::Collective::Send : call.in != nullptr;
    const bool is_lost = counts && (*left_)-- == 0;
    if (!is_lost) return inner_->issue(call);
    zeros_ = at::zeros_like(*call.in);
    comm::Call without = call;
    without.in = &zeros_;
    if (call.in != call.out) return inner_->issue(without);
    call.out->zero_();  // the call is in place, so its input is `out`
    return inner_->issue(call);
  }

 private:
  const Counted counted_;
  const std::shared_ptr<int> left_;
  at::Tensor zeros_;  // a member, because it must outlive the transfer
};

/// The tensor that a rank sent last, and the number of transfers that it still receives before the one that is dropped.
struct Sent {
  at::Tensor last;
  int left;
};

/// The state of a receive whose tensor is dropped: wait() copies `kept` to `out` instead.
class Kept final : public comm::Work::State {
 public:
  Kept(comm::Work arriving, at::Tensor thrown_away, at::Tensor out, at::Tensor kept)
      : arriving_(std::move(arriving)),
        thrown_away_(std::move(thrown_away)),
        out_(std::move(out)),
        kept_(std::move(kept)) {}
  void wait() override {
    arriving_.wait();
    out_.copy_(kept_);
  }
  bool done() override { return false; }

 private:
  comm::Work arriving_;
  const at::Tensor thrown_away_, out_, kept_;
};

class ShortOfARotation final : public comm::GroupDecorator {
 public:
  ShortOfARotation(std::shared_ptr<comm::Group> inner, std::shared_ptr<Sent> sent)
      : GroupDecorator(std::move(inner)), sent_(std::move(sent)) {}
  comm::Work issue(const comm::Call& call) override {
    if (call.collective == comm::Collective::Send) sent_->last = call.in->clone();
    if (call.collective != comm::Collective::Recv || sent_->left-- != 0) return inner_->issue(call);
    at::Tensor thrown_away = at::empty_like(*call.out);
    comm::Work arriving = inner_->recv(thrown_away, call.peer);
    return comm::Work(std::make_shared<Kept>(std::move(arriving), thrown_away, *call.out, sent_->last));
  }

 private:
  const std::shared_ptr<Sent> sent_;
};

/// A group that passes sends and receives on, and hands collectives to an IdleGroup, which exchanges nothing.
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
            return std::make_shared<LosesAMessage>(std::move(group), Counted::Sends, left);
          }};
}

DecoratedWorld losing_a_message(comm::World& world, int lost) {
  const auto left = std::make_shared<int>(lost);
  return {world, [left, loses = world.rank() == 0](std::shared_ptr<comm::Group> group) -> std::shared_ptr<comm::Group> {
            if (!loses) return group;
            return std::make_shared<LosesAMessage>(std::move(group), Counted::AllMessages, left);
          }};
}

DecoratedWorld short_of_a_rotation(comm::World& world, int kept) {
  const auto sent = std::make_shared<Sent>(Sent{{}, kept});
  return {world, [sent](std::shared_ptr<comm::Group> group) {
            return std::make_shared<ShortOfARotation>(std::move(group), sent);
          }};
}

DecoratedWorld without_collectives(comm::World& world) {
  return {world, [](std::shared_ptr<comm::Group> group) { return std::make_shared<TransfersAlone>(group); }};
}

}  // namespace colossal::test
