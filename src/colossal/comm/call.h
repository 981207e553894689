// One call of a collective as a value: the request to a group, independent of the group's transport.
//
//   Call call = Call::all_reduce(x, Reduce::Sum);
//   check(group, call);                            // throws what is wrong with the arguments
//   sent_by(group, call).bytes;                    // 2 (n-1)/n of the bytes of x
//   group.issue(call).wait();                      // the same as group.all_reduce(x, Reduce::Sum).wait()
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "colossal/base/collective.h"

namespace at {
class Tensor;
}

namespace colossal::comm {

class Group;

using Collective = colossal::Collective;
using colossal::to_string;

enum class Reduce { Sum, Max, Min };
const char* to_string(Reduce op);

/// A request of one rank to a group. It refers to the caller's tensors and row counts, which must stay valid for as
/// long as the Call is used. Code that needs them for longer makes a KeptCall (backends/worker.h). The member of
/// Group with the same name documents each collective.
struct Call {
  Collective collective = Collective::Barrier;
  const at::Tensor* out = nullptr;  ///< tensor that is written; null for send and barrier
  const at::Tensor* in = nullptr;   ///< tensor that is read, equal to `out` if the call is in place; null for recv and
                                    ///< barrier
  Reduce op = Reduce::Sum;          ///< reduction of all_reduce, reduce_scatter and reduce
  int peer = 0;                     ///< root of broadcast and reduce; other rank of send and recv
  std::span<const int64_t> out_rows = {}, in_rows = {};  ///< row counts of all_to_all; empty = equal parts

  static Call all_reduce(at::Tensor& x, Reduce op) { return {Collective::AllReduce, &x, &x, op}; }
  static Call all_gather(at::Tensor& out, const at::Tensor& in) { return {Collective::AllGather, &out, &in}; }
  static Call reduce_scatter(at::Tensor& out, const at::Tensor& in, Reduce op) {
    return {Collective::ReduceScatter, &out, &in, op};
  }
  static Call all_to_all(at::Tensor& out, const at::Tensor& in, std::span<const int64_t> out_rows,
                         std::span<const int64_t> in_rows) {
    return {Collective::AllToAll, &out, &in, Reduce::Sum, 0, out_rows, in_rows};
  }
  static Call broadcast(at::Tensor& x, int root) { return {Collective::Broadcast, &x, &x, Reduce::Sum, root}; }
  static Call reduce(at::Tensor& x, int root, Reduce op) { return {Collective::Reduce, &x, &x, op, root}; }
  static Call send(const at::Tensor& x, int to) { return {Collective::Send, nullptr, &x, Reduce::Sum, to}; }
  static Call recv(at::Tensor& x, int from) { return {Collective::Recv, &x, nullptr, Reduce::Sum, from}; }
  static Call barrier() { return {}; }

  /// Returns the tensor that ranks and devices are compared by: the input, for recv the output, for a barrier null.
  const at::Tensor* tensor() const { return in ? in : out; }
  bool reduces() const {
    return collective == Collective::AllReduce || collective == Collective::ReduceScatter ||
           collective == Collective::Reduce;
  }
  bool is_transfer() const { return collective == Collective::Send || collective == Collective::Recv; }
};

/// Throws Error("comm", ...) that names the group, the collective and the tensor at fault if the arguments break the
/// contract of Group. Checks only what one rank can see alone. Does not communicate.
void check(const Group& group, const Call& call);

/// The payload that this rank sends for a call, with the ring algorithms of Group's contract. The call must have
/// passed check().
struct Payload {
  double elements = 0;  ///< number of elements, exact up to 2^53
  double bytes = 0;
  bool operator==(const Payload&) const = default;
};
Payload sent_by(const Group& group, const Call& call);

/// Returns the size of `x` in bytes.
int64_t bytes_of(const at::Tensor& x);
/// Returns the size of call.tensor() in bytes, 0 for a barrier. Messages of the watchdog and of transports report this
/// as the size of a call.
int64_t bytes_of(const Call& call);
/// Returns the size in bytes of the call's larger tensor.
int64_t largest_bytes(const Call& call);

/// Returns the byte offsets at which each rank's rows of an all_to_all start: size + 1 entries. Empty `rows` mean
/// equal parts.
std::vector<int64_t> row_borders(const at::Tensor& x, std::span<const int64_t> rows, int size);

}  // namespace colossal::comm
