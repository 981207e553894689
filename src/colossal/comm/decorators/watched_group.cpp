#include "colossal/comm/decorators/watched_group.h"

#include <ATen/ATen.h>

namespace colossal::comm {
namespace {

/// Waits in the eyes of the watchdog. A transport whose wait() holds up a stream of the device and not the host
/// (NcclGroup) is not done then: the call goes on until its work says so.
class WatchedWait {
 public:
  explicit WatchedWait(std::shared_ptr<Watchdog> watchdog) : watchdog_(std::move(watchdog)) {}

  void operator()(Watchdog::Ticket ticket, const std::shared_ptr<Work>& work) const {
    try {
      Work(*work).wait();  // a copy: the watchdog may be asking the other one
    } catch (...) {
      watchdog_->end(ticket);
      watchdog_->throw_verdict();
      throw;
    }
    watchdog_->check();  // an aborted transport of a device may wait for nothing
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

/// A send or recv under way is nobody's fault until somebody waits for it: a receive may be posted long before its
/// message.
class WatchedTransfer : public Work::State {
 public:
  WatchedTransfer(std::shared_ptr<Watchdog> watchdog, Watchdog::Call call, Work inner)
      : wait_(std::move(watchdog)), call_(call), inner_(std::make_shared<Work>(std::move(inner))) {}

  void wait() override { wait_(wait_.watchdog()->begin(call_), inner_); }
  bool done() override { return inner_->done(); }

 private:
  const WatchedWait wait_;
  const Watchdog::Call call_;
  const std::shared_ptr<Work> inner_;
};

}  // namespace

template <class Start>
Work WatchedGroup::watch(Collective collective, int64_t bytes, int peer, const Start& start) {
  const Watchdog::Call call{handle_, collective, bytes, peer, traffic_.phase()};
  const auto ticket = watchdog_->begin(call);
  try {
    Work work = start();
    if (work.is_empty() || peer >= 0) {
      watchdog_->end(ticket);
      if (work.is_empty()) return work;
      return Work(std::make_shared<WatchedTransfer>(watchdog_, call, std::move(work)));
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

Work WatchedGroup::all_reduce(at::Tensor& x, Reduce op) {
  return watch(Collective::AllReduce, bytes_of(x), -1, [&] { return inner_->all_reduce(x, op); });
}

Work WatchedGroup::all_gather(at::Tensor& out, const at::Tensor& in) {
  return watch(Collective::AllGather, bytes_of(in), -1, [&] { return inner_->all_gather(out, in); });
}

Work WatchedGroup::reduce_scatter(at::Tensor& out, const at::Tensor& in, Reduce op) {
  return watch(Collective::ReduceScatter, bytes_of(in), -1, [&] { return inner_->reduce_scatter(out, in, op); });
}

Work WatchedGroup::all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                              const std::vector<int64_t>& in_rows) {
  return watch(Collective::AllToAll, bytes_of(in), -1, [&] { return inner_->all_to_all(out, in, out_rows, in_rows); });
}

Work WatchedGroup::broadcast(at::Tensor& x, int root) {
  return watch(Collective::Broadcast, bytes_of(x), -1, [&] { return inner_->broadcast(x, root); });
}

Work WatchedGroup::reduce(at::Tensor& x, int root, Reduce op) {
  return watch(Collective::Reduce, bytes_of(x), -1, [&] { return inner_->reduce(x, root, op); });
}

Work WatchedGroup::send(const at::Tensor& x, int to) {
  return watch(Collective::Send, bytes_of(x), to, [&] { return inner_->send(x, to); });
}

Work WatchedGroup::recv(at::Tensor& x, int from) {
  return watch(Collective::Recv, bytes_of(x), from, [&] { return inner_->recv(x, from); });
}

Work WatchedGroup::barrier() {
  return watch(Collective::Barrier, 0, -1, [&] { return inner_->barrier(); });
}

}  // namespace colossal::comm
