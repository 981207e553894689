// One group of ranks and the collectives among them. A transport or a decorator implements one function, issue(); the
// nine collectives make the Call that it gets.
//
//   Group& group = mesh.group("tensor");
//   group.all_reduce(x, Reduce::Sum).wait();      // x is now the sum on all ranks
//   Work work = group.all_gather(all, own);       // goes on while this rank computes
//   compute();
//   work.wait();                                  // `all` may be read
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/call.h"

namespace colossal::comm {

/// A collective in progress. `wait()` returns when the result is in place, or throws the error of the collective.
/// Until then the tensors of the collective must neither change nor be destroyed. A default-constructed Work is done.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual bool done() = 0;
  };
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  void wait() {
    if (state_) state_->wait();
    state_.reset();
  }
  bool done() const { return !state_ || state_->done(); }
  /// Returns true if the work was done when it was made, or has been waited for.
  bool is_empty() const { return !state_; }

 private:
  std::shared_ptr<State> state_;
};

/// Ranks that exchange tensors. Every member must issue the same collectives of one group in the same order; different
/// groups are independent. `rank()` and every `root`, `to`, `from` are within the group.
///
/// Shapes:  tensors are contiguous and of one dtype and device on all ranks. n = size().
/// Bytes:   "sends" counts the payload a rank puts on the wire with ring algorithms, the contract that counters report.
/// Sums:    bf16 and fp16 are accumulated in fp32 and rounded once; the order of summation is the same on every rank,
///          so all ranks get bitwise equal results. reduce_scatter adds in rank order, whatever the size of the message
///          and the place of an element. all_reduce does so, too, but for fp32 and fp64 over more than two ranks of
///          Gloo (GlooOptions::in_rank_order) or NCCL.
/// Errors:  throws Error("comm", ...) naming group and collective when ranks disagree on op, size or dtype (backends
///          that can see it), when a peer died, or when the watchdog's limit passed. After that the group is dead.
class Group {
 public:
  virtual ~Group() = default;
  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts the call. Only the storage of its tensors must outlive issue(), not the Call or the tensor objects. This
  /// is the one function of a transport and of a decorator. A transport refuses what check() refuses; a decorator
  /// passes the call on, unchanged or changed.
  virtual Work issue(const Call& call) = 0;

  /// x <- reduction of x over all ranks, in place. Sends 2 (n-1)/n * numel(x).
  Work all_reduce(at::Tensor& x, Reduce op) { return issue(Call::all_reduce(x, op)); }
  /// out [n * numel(in)] <- every rank's `in`, in rank order. `in` may be slice rank() of `out`.
  /// Sends (n-1)/n * numel(out).
  Work all_gather(at::Tensor& out, const at::Tensor& in) { return issue(Call::all_gather(out, in)); }
  /// out <- slice rank() of the reduction of `in` [n * numel(out)]. `out` may be that slice of `in`; the other slices
  /// of `in` are then unspecified afterwards. Sends (n-1)/n * numel(in).
  Work reduce_scatter(at::Tensor& out, const at::Tensor& in, Reduce op) {
    return issue(Call::reduce_scatter(out, in, op));
  }
  /// Rows [sum in_rows[<r], ...) of `in` go to rank r; the rows from rank r are stored in rank order in `out`. Empty
  /// row counts mean equal parts. Sends the rows that leave this rank.
  Work all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                  const std::vector<int64_t>& in_rows) {
    return issue(Call::all_to_all(out, in, out_rows, in_rows));
  }
  /// x <- root's x. Every rank except the last of the chain sends numel(x), counted as (n-1)/n * numel(x) per rank.
  Work broadcast(at::Tensor& x, int root) { return issue(Call::broadcast(x, root)); }
  /// On root: x <- reduction of x over all ranks. On other ranks x is unspecified afterwards. Counted like broadcast.
  Work reduce(at::Tensor& x, int root, Reduce op) { return issue(Call::reduce(x, root, op)); }
  /// Sends x to rank `to`, which receives a tensor of the same size and dtype. Transfers of a pair and direction
  /// arrive in the order of their calls. Sends numel(x).
  Work send(const at::Tensor& x, int to) { return issue(Call::send(x, to)); }
  /// x <- the tensor that rank `from` sends. Sends nothing.
  Work recv(at::Tensor& x, int from) { return issue(Call::recv(x, from)); }
  /// Completes after all ranks have called it. Sends nothing.
  Work barrier() { return issue(Call::barrier()); }
};

}  // namespace colossal::comm
