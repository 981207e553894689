#include "colossal/comm/backends/calls.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

template <class... Parts>
void check(bool ok, const Group& group, Collective collective, const Parts&... parts) {
  require(ok, "comm", "group \"", group.name(), "\": ", to_string(collective), " ", parts...);
}

void check_tensor(const Group& group, Collective collective, const at::Tensor& x, const char* which) {
  check(x.defined(), group, collective, "got an undefined ", which, " tensor");
  check(x.is_contiguous(), group, collective, "needs contiguous tensors: got ", which, " with strides ", x.strides(),
        " for sizes ", x.sizes(), "; call .contiguous()");
  check(x.layout() == at::kStrided, group, collective, "needs dense tensors: got a ", x.layout(), " ", which);
}

void check_pair(const Group& group, Collective collective, const at::Tensor& out, const at::Tensor& in) {
  check_tensor(group, collective, out, "output");
  check_tensor(group, collective, in, "input");
  check(out.scalar_type() == in.scalar_type(), group, collective, "needs one dtype: got an output of ",
        out.scalar_type(), " for an input of ", in.scalar_type());
  check(out.device() == in.device(), group, collective, "needs one device: got an output on ", out.device(),
        " for an input on ", in.device());
}

void check_rows(const Group& group, const at::Tensor& x, const std::vector<int64_t>& rows, const char* which) {
  constexpr auto kOp = Collective::AllToAll;
  check(x.dim() > 0, group, kOp, "splits dimension 0: got a scalar ", which);
  if (rows.empty()) {
    check(x.size(0) % group.size() == 0, group, kOp, "without row counts needs rows that divide: got ", x.size(0),
          " rows of ", which, " for ", group.size(), " ranks");
    return;
  }
  check(static_cast<int>(rows.size()) == group.size(), group, kOp, "needs one row count a rank: got ", rows.size(),
        " for ", group.size(), " ranks");
  int64_t total = 0;
  for (int64_t count : rows) {
    check(count >= 0, group, kOp, "needs row counts of at least 0: got ", count);
    total += count;
  }
  check(total == x.size(0), group, kOp, "needs row counts that add up to the rows of the ", which, ": got ", total,
        " for ", x.size(0), " rows");
}

}  // namespace

const char* to_string(Collective collective) {
  static constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                                           "reduce",     "send",       "recv",           "barrier"};
  const auto index = static_cast<size_t>(collective);
  return index < std::size(kNames) ? kNames[index] : "an unknown collective";
}

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

int64_t bytes_of(const at::Tensor& x) { return x.numel() * static_cast<int64_t>(x.element_size()); }

void check_all_reduce(const Group& group, const at::Tensor& x) {
  check_tensor(group, Collective::AllReduce, x, "input");
}

void check_all_gather(const Group& group, const at::Tensor& out, const at::Tensor& in) {
  check_pair(group, Collective::AllGather, out, in);
  check(out.numel() == in.numel() * group.size(), group, Collective::AllGather, "needs an output of ", group.size(),
        " inputs: got ", out.numel(), " elements for inputs of ", in.numel());
}

void check_reduce_scatter(const Group& group, const at::Tensor& out, const at::Tensor& in) {
  check_pair(group, Collective::ReduceScatter, out, in);
  check(in.numel() == out.numel() * group.size(), group, Collective::ReduceScatter, "needs an input of ", group.size(),
        " outputs: got ", in.numel(), " elements for outputs of ", out.numel());
}

void check_all_to_all(const Group& group, const at::Tensor& out, const at::Tensor& in,
                      const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows) {
  check_pair(group, Collective::AllToAll, out, in);
  check_rows(group, out, out_rows, "output");
  check_rows(group, in, in_rows, "input");
}

void check_rooted(const Group& group, Collective collective, const at::Tensor& x, int peer) {
  check_tensor(group, collective, x, "input");
  check(peer >= 0 && peer < group.size(), group, collective, "needs a rank in [0, ", group.size(), "): got ", peer);
  const bool to_itself = (collective == Collective::Send || collective == Collective::Recv) && peer == group.rank();
  check(!to_itself, group, collective, "needs another rank: got this rank, ", peer);
}

std::vector<int64_t> row_borders(const at::Tensor& x, const std::vector<int64_t>& rows, int size) {
  const int64_t row_bytes = x.size(0) == 0 ? 0 : bytes_of(x) / x.size(0);
  std::vector<int64_t> borders(size + 1, 0);
  for (int r = 0; r < size; ++r) {
    borders[r + 1] = borders[r] + row_bytes * (rows.empty() ? x.size(0) / size : rows[r]);
  }
  return borders;
}

}  // namespace colossal::comm
