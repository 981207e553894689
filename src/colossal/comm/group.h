// One group of ranks and the collectives among them: the whole virtual interface. Everything else is composed from it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace at {
class Tensor;
}

namespace colossal::comm {

enum class Reduce { Sum, Max, Min };

/// A collective under way. `wait()` returns when the result is in place, or throws what went wrong. The tensors given
/// to the collective must neither change nor die before it. A default-made Work is done.
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
  /// Was done when it was made, or has been waited for.
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
///          so all ranks get bitwise equal results.
/// Errors:  throws Error("comm", ...) naming group and collective when ranks disagree on op, size or dtype (backends
///          that can see it), when a peer died, or when the watchdog's limit passed. After that the group is dead.
class Group {
 public:
  virtual ~Group() = default;
  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// x <- reduction of x over all ranks, in place. Sends 2 (n-1)/n * numel(x).
  virtual Work all_reduce(at::Tensor& x, Reduce op) = 0;
  /// out [n * numel(in)] <- every rank's `in`, in rank order. `in` may be slice rank() of `out`. Sends (n-1)/n *
  /// numel(out).
  virtual Work all_gather(at::Tensor& out, const at::Tensor& in) = 0;
  /// out <- slice rank() of the reduction of `in` [n * numel(out)]; may be that slice of `in`, whose other slices are
  /// unspecified afterwards then. Sends (n-1)/n * numel(in).
  virtual Work reduce_scatter(at::Tensor& out, const at::Tensor& in, Reduce op) = 0;
  /// Rows [sum in_rows[<r], ...) of `in` go to rank r; the rows from rank r land likewise in `out`. Empty: equal parts.
  /// Sends what leaves this rank.
  virtual Work all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                          const std::vector<int64_t>& in_rows) = 0;
  /// x <- root's x. Every rank but the last of the chain sends numel(x): counted as (n-1)/n * numel(x) a rank.
  virtual Work broadcast(at::Tensor& x, int root) = 0;
  /// On root, x <- reduction of x over all ranks; elsewhere x is unspecified afterwards. Counted like broadcast.
  virtual Work reduce(at::Tensor& x, int root, Reduce op) = 0;
  virtual Work send(const at::Tensor& x, int to) = 0;
  virtual Work recv(at::Tensor& x, int from) = 0;
  virtual Work barrier() = 0;
};

}  // namespace colossal::comm
