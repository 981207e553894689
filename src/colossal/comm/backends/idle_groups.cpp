#include "colossal/comm/backends/idle_groups.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/comm/backends/calls.h"

namespace colossal::comm {

Work IdleGroup::all_reduce(at::Tensor& x, Reduce) {
  check_all_reduce(*this, x);
  return Work();
}

Work IdleGroup::all_gather(at::Tensor& out, const at::Tensor& in) {
  check_all_gather(*this, out, in);
  const at::NoGradGuard no_grad;
  // `in` may be a slice of `out`
  if (size_ > 1)
    out.view({size_, in.numel()}).copy_(in.reshape({1, in.numel()}).clone());
  else if (out.data_ptr() != in.data_ptr())
    out.view(-1).copy_(in.reshape({-1}));
  return Work();
}

Work IdleGroup::reduce_scatter(at::Tensor& out, const at::Tensor& in, Reduce) {
  check_reduce_scatter(*this, out, in);
  const at::NoGradGuard no_grad;
  if (out.numel() > 0) out.view(-1).copy_(in.view({size_, out.numel()}).select(0, rank_));
  return Work();
}

Work IdleGroup::all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                           const std::vector<int64_t>& in_rows) {
  check_all_to_all(*this, out, in, out_rows, in_rows);
  const at::NoGradGuard no_grad;
  const int64_t kept = std::min(out.numel(), in.numel());
  if (kept < out.numel()) out.zero_();
  if (kept > 0) out.view(-1).narrow(0, 0, kept).copy_(in.view(-1).narrow(0, 0, kept));
  return Work();
}

Work IdleGroup::broadcast(at::Tensor& x, int root) {
  check_rooted(*this, Collective::Broadcast, x, root);
  if (root != rank_) x.zero_();
  return Work();
}

Work IdleGroup::reduce(at::Tensor& x, int root, Reduce) {
  check_rooted(*this, Collective::Reduce, x, root);
  return Work();
}

Work IdleGroup::send(const at::Tensor& x, int to) {
  check_rooted(*this, Collective::Send, x, to);
  return Work();
}

Work IdleGroup::recv(at::Tensor& x, int from) {
  check_rooted(*this, Collective::Recv, x, from);
  if (from != rank_) x.zero_();
  return Work();
}

Work IdleGroup::barrier() { return Work(); }

std::shared_ptr<Backend> make_null_group(const std::string& name) { return std::make_shared<IdleGroup>(name, 0, 1); }

std::shared_ptr<Backend> make_off_group(const std::string& name, int rank, int size) {
  return std::make_shared<IdleGroup>(name, rank, size);
}

}  // namespace colossal::comm
