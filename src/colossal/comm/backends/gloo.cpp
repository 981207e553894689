#include <ATen/ATen.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "colossal/base/error.h"
#include "colossal/comm/backends/c10d.h"
#include "colossal/comm/backends/c10d_op.h"
#include "colossal/comm/backends/reduction.h"
#include "colossal/comm/backends/worker.h"

namespace colossal::comm {
namespace {

using C10dWork = c10::intrusive_ptr<c10d::Work>;

/// Whether and why the group has ended. It outlives the group, because users hold works that refer to it.
class Ending {
 public:
  explicit Ending(std::string group) : group_(std::move(group)) {}

  /// Ends the group; returns false if it had already ended.
  bool end(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (reason_) return false;
    reason_ = reason;
    changed_.notify_all();
    for (const auto& transfer : transfers_) transfer->abort();
    return true;
  }
  void check() {
    const std::lock_guard lock(mutex_);
    if (reason_) throw Error("comm", *reason_);
  }

  /// Waits for a collective, or for the end of the group, because Gloo itself cannot be interrupted.
  void complete(const C10dWork& work) {
    auto finished = std::make_shared<bool>(false);
    auto self = self_.lock();
    work->getFuture()->addCallback([self, finished](c10::ivalue::Future&) {
      const std::lock_guard lock(self->mutex_);
      *finished = true;
      self->changed_.notify_all();
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return *finished || reason_; });
    if (reason_) throw Error("comm", *reason_);
    lock.unlock();
    translate([&] { work->wait(); });
  }

  /// Waits for a send or a recv.
  void complete_transfer(const C10dWork& work) {
    {
      const std::lock_guard lock(mutex_);
      if (reason_) throw Error("comm", *reason_);
      transfers_.insert(work);
    }
    const auto leave = [&] {
      const std::lock_guard lock(mutex_);
      transfers_.erase(work);
    };
    try {
      translate([&] { work->wait(); });
    } catch (...) {
      leave();
      throw;
    }
    leave();
    check();  // an aborted wait returns without a result
  }

  template <class Fn>
  void translate(const Fn& fn) {
    try {
      fn();
    } catch (const std::exception& error) {
      check();
      throw Error("comm", concat("group \"", group_, "\": the connection to a peer failed; it may have died (",
                                 plain_message(error), ")"));
    }
  }

  static std::shared_ptr<Ending> make(std::string group) {
    auto ending = std::make_shared<Ending>(std::move(group));
    ending->self_ = ending;
    return ending;
  }

 private:
  const std::string group_;
  std::weak_ptr<Ending> self_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> reason_;
  std::set<C10dWork> transfers_;
};

class TransferWork : public Work::State {
 public:
  TransferWork(std::shared_ptr<Ending> ending, C10dWork work, at::Tensor kept)
      : ending_(std::move(ending)), work_(std::move(work)), kept_(std::move(kept)) {}
  void wait() override { ending_->complete_transfer(work_); }
  bool done() override { return work_->isCompleted(); }

 private:
  std::shared_ptr<Ending> ending_;
  C10dWork work_;
  at::Tensor kept_;
};

/// Returns true for dtypes that Gloo adds at low precision at each hop, or as plain numbers (bool).
bool reduces_wrongly(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kBool;
}

/// Returns true if the sum of an element by Gloo's ring depends on its place in the message: each part is added up from
/// another rank on. The order of two ranks has no effect.
bool depends_on_place(at::ScalarType dtype, Reduce op, int ranks) {
  return ranks > 2 && op == Reduce::Sum && at::isFloatingType(dtype);
}

class GlooGroup : public Backend {
 public:
  GlooGroup(const GlooOptions& options, c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo)
      : name_(options.name),
        rank_(options.rank),
        size_(options.size),
        in_rank_order_(options.in_rank_order),
        gloo_(std::move(gloo)),
        ending_(Ending::make(options.name)),
        worker_(std::make_unique<Worker>()) {}

  ~GlooGroup() override {
    worker_.reset();
    // Destroying a Gloo context joins threads that may wait for a dead peer until Gloo's own limit. An aborted group
    // is near the end of its process, so the context is leaked instead.
    if (aborted_) (void)gloo_.release();
  }

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Work issue(const Call& call) override;
  void abort(const std::string& reason) noexcept override {
    aborted_ = true;
    ending_->end(reason);
  }

 private:
  template <class Task>
  Work run(int64_t bytes, Task task) {
    ending_->check();
    if (bytes > kInlineBytes || !worker_->idle()) return worker_->submit(std::move(task));
    task();
    return Work();
  }
  template <class Start>
  void complete(const Start& start) {
    C10dWork work;
    ending_->translate([&] { work = start(); });
    ending_->complete(work);
  }
  Work transfer(const Call& call);
  void perform(const Call& call);
  void reduce_tensor(at::Tensor x, Reduce op, std::optional<int> root);  // no root: on all ranks
  void exchange(at::Tensor out, at::Tensor in) {
    std::vector<int64_t> even;
    complete([&] { return gloo_->alltoall_base(out, in, even, even); });
  }
  void exchange_rows(const Call& call);
  /// Writes the reduction of the `size` rows of `parts` to `out`.
  void reduce_rows(const at::Tensor& out, const at::Tensor& parts, Reduce op) {
    std::vector<const void*> rows(size_);
    const int64_t row_bytes = bytes_of(out);
    for (int r = 0; r < size_; ++r) rows[r] = static_cast<const std::byte*>(parts.data_ptr()) + r * row_bytes;
    reduce_arrays(out.data_ptr(), rows.data(), size_, out.numel(), out.scalar_type(), op);
  }
  void reduce_everywhere(at::Tensor x, Reduce op);

  const std::string name_;
  const int rank_, size_;
  const bool in_rank_order_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::shared_ptr<Ending> ending_;
  std::atomic<bool> aborted_{false};
  std::unique_ptr<Worker> worker_;
};

/// Reduces by an exchange and an ordered local sum, then gathers the parts.
void GlooGroup::reduce_everywhere(at::Tensor x, Reduce op) {
  const int64_t part = (x.numel() + size_ - 1) / size_;
  const at::Tensor flat = x.view(-1);
  const bool is_even = size_ * part == x.numel();
  at::Tensor padded = is_even ? flat : at::constant_pad_nd(flat, {0, size_ * part - x.numel()});
  at::Tensor received = at::empty_like(padded);
  exchange(received, padded);
  at::Tensor own = at::empty({part}, x.options());
  reduce_rows(own, received, op);
  complete([&] { return gloo_->_allgather_base(padded, own); });
  if (!is_even) flat.copy_(padded.narrow(0, 0, x.numel()));
}

void GlooGroup::reduce_tensor(at::Tensor x, Reduce op, std::optional<int> root) {
  if (reduces_wrongly(x.scalar_type())) return reduce_everywhere(x, op);
  if (in_rank_order_ && !root && depends_on_place(x.scalar_type(), op, size_)) return reduce_everywhere(x, op);
  std::vector<at::Tensor> tensors{x};
  if (!root) {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_op(op);
    return complete([&] { return gloo_->allreduce(tensors, options); });
  }
  c10d::ReduceOptions options;
  options.rootRank = *root;
  options.reduceOp = c10d_op(op);
  complete([&] { return gloo_->reduce(tensors, options); });
}

/// Exchanges bytes, because Gloo supports few dtypes. It always passes the row counts, so that ranks may differ in
/// whether they gave them.
void GlooGroup::exchange_rows(const Call& call) {
  const auto counts = [&](const at::Tensor& x, std::span<const int64_t> rows) {
    const auto borders = row_borders(x, rows, size_);
    std::vector<int64_t> result(size_);
    for (int r = 0; r < size_; ++r) result[r] = borders[r + 1] - borders[r];
    return result;
  };
  const auto as_bytes = [](const at::Tensor& x) {
    return x.numel() == 0 ? at::empty({0}, at::kByte) : x.detach().view(-1).view(at::kByte);
  };
  at::Tensor to = as_bytes(*call.out), from = as_bytes(*call.in);
  auto to_counts = counts(*call.out, call.out_rows), from_counts = counts(*call.in, call.in_rows);
  complete([&] { return gloo_->alltoall_base(to, from, to_counts, from_counts); });
}

void GlooGroup::perform(const Call& call) {
  const auto flat = [](const at::Tensor* x) { return x->detach().view(-1); };
  switch (call.collective) {
    case Collective::AllReduce:
      return reduce_tensor(call.out->detach(), call.op, std::nullopt);
    case Collective::Reduce:
      return reduce_tensor(call.out->detach(), call.op, call.peer);
    case Collective::AllGather: {
      at::Tensor out = flat(call.out), in = flat(call.in);
      return complete([&] { return gloo_->_allgather_base(out, in); });
    }
    case Collective::ReduceScatter: {
      const at::Tensor in = flat(call.in), received = at::empty_like(in);
      exchange(received, in);
      return reduce_rows(flat(call.out), received, call.op);
    }
    case Collective::AllToAll:
      return exchange_rows(call);
    case Collective::Broadcast: {
      std::vector<at::Tensor> tensors{flat(call.out).view(at::kByte)};
      c10d::BroadcastOptions options;
      options.rootRank = call.peer;
      return complete([&] { return gloo_->broadcast(tensors, options); });
    }
    default:
      return complete([&] { return gloo_->barrier(); });
  }
}

Work GlooGroup::transfer(const Call& call) {
  ending_->check();
  std::vector<at::Tensor> tensors{call.tensor()->detach()};
  if (tensors[0].numel() == 0) return Work();
  C10dWork work;
  ending_->translate([&] {
    work =
        call.collective == Collective::Send ? gloo_->send(tensors, call.peer, 0) : gloo_->recv(tensors, call.peer, 0);
  });
  return Work(std::make_shared<TransferWork>(ending_, work, tensors[0]));
}

Work GlooGroup::issue(const Call& call) {
  check(*this, call);
  if (call.reduces()) check_reducible(call.in->scalar_type());
  if (call.is_transfer()) return transfer(call);
  // In an all_to_all only this rank's part may be empty, so it is never skipped.
  const bool may_be_empty = call.collective != Collective::AllToAll && call.collective != Collective::Barrier;
  if (may_be_empty && call.in->numel() == 0) return Work();
  return run(largest_bytes(call), [this, kept = KeptCall(call)] { perform(kept.call()); });
}

}  // namespace

std::shared_ptr<Backend> make_gloo_group(const GlooOptions& options, std::shared_ptr<Store> store) {
  auto gloo_options = c10d::ProcessGroupGloo::Options::create(options.limit);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  try {
    gloo_options->devices.push_back(
        interface && *interface ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                : c10d::ProcessGroupGloo::createDeviceForHostname(options.address));
    gloo_options->threads = 2;
    auto keys = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store->c10d_store().get());
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(keys), options.rank, options.size, gloo_options);
    return std::make_shared<GlooGroup>(options, std::move(gloo));
  } catch (const std::exception& error) {
    throw Error("comm", concat("group \"", options.name, "\": cannot connect its ranks over TCP from ", options.address,
                               ": ", plain_message(error),
                               "; set GLOO_SOCKET_IFNAME to the network interface that reaches the peers"));
  }
}

}  // namespace colossal::comm
