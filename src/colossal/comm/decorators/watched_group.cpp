#include "colossal/comm/decorators/watched_group.h"

#include <ATen/ATen.h>

namespace colossal::comm {
namespace {

/// Ends the ticket when the work has been waited for.
class WatchedWork : public Work::State {
 public:
  WatchedWork(std::shared_ptr<Watchdog> watchdog, Watchdog::Ticket ticket, std::shared_ptr<Work> inner)
      : watchdog_(std::move(watchdog)), ticket_(ticket), inner_(std::move(inner)) {}

  void wait() override {
    try {
      Work(*inner_).wait();  // a copy: the watchdog may be asking the other one
    } catch (...) {
      watchdog_->end(ticket_);
      watchdog_->throw_verdict();
      throw;
    }
    watchdog_->end(ticket_);
  }
  bool done() override { return inner_->done(); }

 private:
  std::shared_ptr<Watchdog> watchdog_;
  const Watchdog::Ticket ticket_;
  const std::shared_ptr<Work> inner_;
};

/// A send or recv under way is nobody's fault until somebody waits for it: a receive may be posted long before its
/// message.
class WatchedTransfer : public Work::State {
 public:
  WatchedTransfer(std::shared_ptr<Watchdog> watchdog, Watchdog::Call call, Work inner)
      : watchdog_(std::move(watchdog)), call_(call), inner_(std::move(inner)) {}

  void wait() override {
    const auto ticket = watchdog_->begin(call_);
    try {
      inner_.wait();
    } catch (...) {
      watchdog_->end(ticket);
      watchdog_->throw_verdict();
      throw;
    }
    watchdog_->end(ticket);
  }
  bool done() override { return inner_.done(); }

 private:
  std::shared_ptr<Watchdog> watchdog_;
  const Watchdog::Call call_;
  Work inner_;
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
