#include "colossal/comm/decorators/watched_group.h"

namespace colossal::comm {
namespace {

/// Waits under the watch of the watchdog. The wait() of some transports (NcclGroup) blocks a device stream and not the
/// host. The call is then not done, and stays recorded until its work is done.
class WatchedWait {
 public:
  explicit WatchedWait(std::shared_ptr<Watchdog> watchdog) : watchdog_(std::move(watchdog)) {}

  void operator()(Watchdog::Ticket ticket, const std::shared_ptr<Work>& work) const {
    try {
      Work(*work).wait();  // a copy, because the watchdog may query the original at the same time
    } catch (...) {
      watchdog_->end(ticket);
      watchdog_->throw_verdict();
      throw;
    }
    watchdog_->check();  // because an aborted device transport may return without waiting
    if (work->done())
      watchdog_->end(ticket);
    else
      watchdog_->follow(ticket, work);
  }
  const std::shared_ptr<Watchdog>& watchdog() const { return watchdog_; }

 private:
  std::shared_ptr<Watchdog> watchdog_;
};

class WatchedWork : public Work::State {
 public:
  WatchedWork(std::shared_ptr<Watchdog> watchdog, Watchdog::Ticket ticket, std::shared_ptr<Work> inner)
      : wait_(std::move(watchdog)), ticket_(ticket), inner_(std::move(inner)) {}

  void wait() override { wait_(ticket_, inner_); }
  bool done() override { return inner_->done(); }

 private:
  const WatchedWait wait_;
  const Watchdog::Ticket ticket_;
  const std::shared_ptr<Work> inner_;
};

/// A send or recv in progress counts as late only after a thread waits for it, because a receive may be posted long
/// before its message.
class WatchedTransfer : public Work::State {
 public:
  WatchedTransfer(std::shared_ptr<Watchdog> watchdog, Watchdog::Watched call, Work inner)
      : wait_(std::move(watchdog)), call_(call), inner_(std::make_shared<Work>(std::move(inner))) {}

  void wait() override { wait_(wait_.watchdog()->begin(call_), inner_); }
  bool done() override { return inner_->done(); }

 private:
  const WatchedWait wait_;
  const Watchdog::Watched call_;
  const std::shared_ptr<Work> inner_;
};

}  // namespace

Work WatchedGroup::issue(const Call& call) {
  const Watchdog::Watched watched{handle_, call.collective, bytes_of(call), call.is_transfer() ? call.peer : -1,
                                  traffic_.phase()};
  const auto ticket = watchdog_->begin(watched);
  try {
    Work work = inner_->issue(call);
    if (work.is_empty() || call.is_transfer()) {
      watchdog_->end(ticket);
      if (work.is_empty()) return work;
      return Work(std::make_shared<WatchedTransfer>(watchdog_, watched, std::move(work)));
    }
    auto kept = std::make_shared<Work>(std::move(work));
    watchdog_->follow(ticket, kept);
    return Work(std::make_shared<WatchedWork>(watchdog_, ticket, std::move(kept)));
  } catch (...) {
    watchdog_->end(ticket);
    watchdog_->throw_verdict();
    throw;
  }
}

}  // namespace colossal::comm
