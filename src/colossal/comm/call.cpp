#include "colossal/comm/call.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/comm/group.h"

namespace colossal::comm {
namespace {

template <class... Parts>
void demand(bool ok, const Group& group, const Call& call, const Parts&... parts) {
  require(ok, "comm", "group \"", group.name(), "\": ", to_string(call.collective), " ", parts...);
}

void check_tensor(const Group& group, const Call& call, const at::Tensor& x, const char* which) {
  demand(x.defined(), group, call, "got an undefined ", which, " tensor");
  demand(x.is_contiguous(), group, call, "needs contiguous tensors: got ", which, " with strides ", x.strides(),
         " for sizes ", x.sizes(), "; call .contiguous()");
  demand(x.layout() == at::kStrided, group, call, "needs dense tensors: got a ", x.layout(), " ", which);
}

void check_pair(const Group& group, const Call& call) {
  const at::Tensor &out = *call.out, &in = *call.in;
  check_tensor(group, call, out, "output");
  check_tensor(group, call, in, "input");
  demand(out.scalar_type() == in.scalar_type(), group, call, "needs one dtype: got an output of ", out.scalar_type(),
         " for an input of ", in.scalar_type());
  demand(out.device() == in.device(), group, call, "needs one device: got an output on ", out.device(),
         " for an input on ", in.device());
}

void check_rows(const Group& group, const Call& call, const at::Tensor& x, std::span<const int64_t> rows,
                const char* which) {
  demand(x.dim() > 0, group, call, "needs a dimension to split: got a scalar ", which);
  if (rows.empty()) {
    demand(x.size(0) % group.size() == 0, group, call, "without row counts needs rows divisible by the ranks: got ",
           x.size(0), " rows of ", which, " for ", group.size(), " ranks");
    return;
  }
  demand(static_cast<int>(rows.size()) == group.size(), group, call, "needs one row count per rank: got ", rows.size(),
         " for ", group.size(), " ranks");
  int64_t total = 0;
  for (int64_t count : rows) {
    demand(count >= 0, group, call, "needs row counts of at least 0: got ", count);
    total += count;
  }
  demand(total == x.size(0), group, call, "needs row counts whose sum is the rows of the ", which, ": got ", total,
         " for ", x.size(0), " rows");
}

void check_peer(const Group& group, const Call& call) {
  check_tensor(group, call, *call.tensor(), "input");
  demand(call.peer >= 0 && call.peer < group.size(), group, call, "needs a rank in [0, ", group.size(), "): got ",
         call.peer);
  demand(!call.is_transfer() || call.peer != group.rank(), group, call, "needs a peer other than this rank: got ",
         call.peer);
}

/// Returns `factor` (n-1)/n times the elements of x. The order of the operations keeps the result exact up to 2^53.
double around_the_ring(const Group& group, double factor, const at::Tensor& x) {
  return factor * (group.size() - 1) * static_cast<double>(x.numel()) / group.size();
}

double elements_sent(const Group& group, const Call& call) {
  switch (call.collective) {
    case Collective::AllReduce:
      return around_the_ring(group, 2, *call.in);
    case Collective::AllGather:
      return around_the_ring(group, 1, *call.out);
    case Collective::ReduceScatter:
    case Collective::Broadcast:
    case Collective::Reduce:
      return around_the_ring(group, 1, *call.in);
    case Collective::AllToAll: {
      const int64_t rows = call.in->size(0);
      const int64_t kept = call.in_rows.empty() ? rows / group.size() : call.in_rows[group.rank()];
      return rows == 0 ? 0 : static_cast<double>(call.in->numel() / rows * (rows - kept));
    }
    case Collective::Send:
      return static_cast<double>(call.in->numel());
    case Collective::Recv:
    case Collective::Barrier:
      return 0;
  }
  return 0;
}

}  // namespace

const char* to_string(Reduce op) {
  switch (op) {
    case Reduce::Sum:
      return "sum";
    case Reduce::Max:
      return "max";
    case Reduce::Min:
      return "min";
  }
  return "an unknown reduction";
}

void check(const Group& group, const Call& call) {
  switch (call.collective) {
    case Collective::AllReduce:
      return check_tensor(group, call, *call.in, "input");
    case Collective::AllGather:
      check_pair(group, call);
      return demand(call.out->numel() == call.in->numel() * group.size(), group, call, "needs an output of ",
                    group.size(), " inputs: got ", call.out->numel(), " elements for inputs of ", call.in->numel());
    case Collective::ReduceScatter:
      check_pair(group, call);
      return demand(call.in->numel() == call.out->numel() * group.size(), group, call, "needs an input of ",
                    group.size(), " outputs: got ", call.in->numel(), " elements for outputs of ", call.out->numel());
    case Collective::AllToAll:
      check_pair(group, call);
      check_rows(group, call, *call.out, call.out_rows, "output");
      return check_rows(group, call, *call.in, call.in_rows, "input");
    case Collective::Broadcast:
    case Collective::Reduce:
    case Collective::Send:
    case Collective::Recv:
      return check_peer(group, call);
    case Collective::Barrier:
      return;
  }
}

Payload sent_by(const Group& group, const Call& call) {
  const double elements = elements_sent(group, call);
  return {elements, elements == 0 ? 0 : elements * static_cast<double>(call.in->element_size())};
}

int64_t bytes_of(const at::Tensor& x) { return x.numel() * static_cast<int64_t>(x.element_size()); }

int64_t bytes_of(const Call& call) { return call.tensor() ? bytes_of(*call.tensor()) : 0; }

int64_t largest_bytes(const Call& call) { return std::max(bytes_of(call), call.out ? bytes_of(*call.out) : 0); }

std::vector<int64_t> row_borders(const at::Tensor& x, std::span<const int64_t> rows, int size) {
  const int64_t row_bytes = x.size(0) == 0 ? 0 : bytes_of(x) / x.size(0);
  std::vector<int64_t> borders(size + 1, 0);
  for (int r = 0; r < size; ++r) {
    borders[r + 1] = borders[r] + row_bytes * (rows.empty() ? x.size(0) / size : rows[r]);
  }
  return borders;
}

}  // namespace colossal::comm
