// The collectives by name, and the checks of their arguments that need no communication.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/comm/group.h"

namespace colossal::comm {

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
const char* to_string(Reduce op);

/// Bytes of `x`.
int64_t bytes_of(const at::Tensor& x);

/// Each throws Error("comm", ...) that names the group, the collective and the tensor at fault, before anything is
/// sent.
void check_all_reduce(const Group& group, const at::Tensor& x);
void check_all_gather(const Group& group, const at::Tensor& out, const at::Tensor& in);
void check_reduce_scatter(const Group& group, const at::Tensor& out, const at::Tensor& in);
void check_all_to_all(const Group& group, const at::Tensor& out, const at::Tensor& in,
                      const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows);
/// Broadcast, Reduce, Send and Recv: `peer` is the root or the other side.
void check_rooted(const Group& group, Collective collective, const at::Tensor& x, int peer);

/// Where each rank's rows of an all_to_all begin, in bytes: size() + 1 entries. Empty `rows`: equal parts.
std::vector<int64_t> row_borders(const at::Tensor& x, const std::vector<int64_t>& rows, int size);

}  // namespace colossal::comm
