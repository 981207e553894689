// One call of a collective as a value: what a group is asked to do, whatever transport stands behind it.
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

namespace at {
class Tensor;
}

namespace colossal::comm {

class Group;

enum class Collective : uint8_t {
  AllReduce,
  AllGather,
  ReduceScatter,
  AllToAll,
  Broadcast,
  Reduce,
  Send,
  Recv,
  Barrier,
};
const char* to_string(Collective collective);

enum class Reduce { Sum, Max, Min };
const char* to_string(Reduce op);

/// What one rank asks of a group. It refers to the tensors and row counts of its caller, who keeps them for as long as
/// the Call is used; whoever needs them longer makes a KeptCall (backends/kept_call.h). The meaning of each collective
/// is the contract of the member of Group that bears its name.
struct Call {
  Collective collective = Collective::Barrier;
  const at::Tensor* out = nullptr;  ///< what is written; null where nothing is (send, barrier)
  const at::Tensor* in = nullptr;   ///< what is read, equal to `out` in place; null where nothing is (recv, barrier)
  Reduce op = Reduce::Sum;          ///< of all_reduce, reduce_scatter and reduce
  int peer = 0;                     ///< root of broadcast and reduce, the other rank of send and recv
  std::span<const int64_t> out_rows = {}, in_rows = {};  ///< of all_to_all; empty: equal parts

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

  /// The tensor by which ranks and devices are compared: what is read, of recv what is written; null for a barrier.
  const at::Tensor* tensor() const { return in ? in : out; }
  bool reduces() const {
    return collective == Collective::AllReduce || collective == Collective::ReduceScatter ||
           collective == Collective::Reduce;
  }
  bool is_transfer() const { return collective == Collective::Send || collective == Collective::Recv; }
};

/// Throws Error("comm", ...) that names the group, the collective and the tensor at fault, unless the arguments fit the
/// contract of Group as far as one rank can see it alone. Makes no communication.
void check(const Group& group, const Call& call);

/// The payload that this rank sends by a call, with the ring algorithms of Group's contract. The call must have passed
/// check().
struct Payload {
  double elements = 0;  ///< exact up to 2^53
  double bytes = 0;
  bool operator==(const Payload&) const = default;
};
Payload sent_by(const Group& group, const Call& call);

/// Bytes of `x`.
int64_t bytes_of(const at::Tensor& x);
/// Bytes of call.tensor(): what the messages of the watchdog and of transports call the size of a call. 0 for a
/// barrier.
int64_t bytes_of(const Call& call);
/// Bytes of its larger tensor.
int64_t largest_bytes(const Call& call);

/// Where each rank's rows of an all_to_all begin, in bytes: size + 1 entries. Empty `rows`: equal parts.
std::vector<int64_t> row_borders(const at::Tensor& x, std::span<const int64_t> rows, int size);

}  // namespace colossal::comm
