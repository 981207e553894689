#include "colossal/comm/decorators/counting.h"

#include <ATen/ATen.h>

#include "colossal/comm/backends/calls.h"

namespace colossal::comm {
namespace {

/// `factor` (n-1)/n times the elements of x, in an order of operations that is exact up to 2^53.
void count(Traffic& traffic, const Group& group, Collective collective, double factor, const at::Tensor& x) {
  const double elements = factor * (group.size() - 1) * static_cast<double>(x.numel()) / group.size();
  traffic.add(group.name(), to_string(collective), elements, elements * static_cast<double>(x.element_size()));
}

}  // namespace

Work CountingGroup::all_reduce(at::Tensor& x, Reduce op) {
  check_all_reduce(*this, x);
  count(traffic_, *this, Collective::AllReduce, 2, x);
  return inner_->all_reduce(x, op);
}

Work CountingGroup::all_gather(at::Tensor& out, const at::Tensor& in) {
  check_all_gather(*this, out, in);
  count(traffic_, *this, Collective::AllGather, 1, out);
  return inner_->all_gather(out, in);
}

Work CountingGroup::reduce_scatter(at::Tensor& out, const at::Tensor& in, Reduce op) {
  check_reduce_scatter(*this, out, in);
  count(traffic_, *this, Collective::ReduceScatter, 1, in);
  return inner_->reduce_scatter(out, in, op);
}

Work CountingGroup::all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                               const std::vector<int64_t>& in_rows) {
  check_all_to_all(*this, out, in, out_rows, in_rows);
  const int64_t rows = in.size(0), kept = in_rows.empty() ? rows / size() : in_rows[rank()];
  const double elements = rows == 0 ? 0 : static_cast<double>(in.numel() / rows * (rows - kept));
  traffic_.add(name(), to_string(Collective::AllToAll), elements, elements * static_cast<double>(in.element_size()));
  return inner_->all_to_all(out, in, out_rows, in_rows);
}

Work CountingGroup::broadcast(at::Tensor& x, int root) {
  check_rooted(*this, Collective::Broadcast, x, root);
  count(traffic_, *this, Collective::Broadcast, 1, x);
  return inner_->broadcast(x, root);
}

Work CountingGroup::reduce(at::Tensor& x, int root, Reduce op) {
  check_rooted(*this, Collective::Reduce, x, root);
  count(traffic_, *this, Collective::Reduce, 1, x);
  return inner_->reduce(x, root, op);
}

Work CountingGroup::send(const at::Tensor& x, int to) {
  check_rooted(*this, Collective::Send, x, to);
  const auto elements = static_cast<double>(x.numel());
  traffic_.add(name(), to_string(Collective::Send), elements, elements * static_cast<double>(x.element_size()));
  return inner_->send(x, to);
}

Work CountingGroup::recv(at::Tensor& x, int from) {
  check_rooted(*this, Collective::Recv, x, from);
  traffic_.add(name(), to_string(Collective::Recv), 0, 0);
  return inner_->recv(x, from);
}

Work CountingGroup::barrier() {
  traffic_.add(name(), to_string(Collective::Barrier), 0, 0);
  return inner_->barrier();
}

}  // namespace colossal::comm
