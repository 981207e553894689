#include "colossal/comm/simulated_world.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/comm/rank_world.h"

namespace colossal::comm {
namespace {

/// Repeats `in` `size` times in `out`; `in` may be a slice of `out`.
void repeat(const at::Tensor& out, const at::Tensor& in, int size) {
  if (out.is_meta()) return;  // no values; the copy of `in` would count as memory that no real group takes
  if (size > 1)
    out.view({size, in.numel()}).copy_(in.reshape({1, in.numel()}).clone());
  else if (out.data_ptr() != in.data_ptr())
    out.view(-1).copy_(in.reshape({-1}));
}

void keep_what_fits(const at::Tensor& out, const at::Tensor& in) {
  const int64_t kept = std::min(out.numel(), in.numel());
  if (kept < out.numel()) out.zero_();
  if (kept > 0) out.view(-1).narrow(0, 0, kept).copy_(in.view(-1).narrow(0, 0, kept));
}

}  // namespace

Work IdleGroup::issue(const Call& call) {
  check(*this, call);
  const at::NoGradGuard no_grad;
  switch (call.collective) {
    case Collective::AllGather:
      repeat(*call.out, *call.in, size_);
      break;
    case Collective::ReduceScatter:
      if (call.out->numel() > 0) call.out->view(-1).copy_(call.in->view({size_, call.out->numel()}).select(0, rank_));
      break;
    case Collective::AllToAll:
      keep_what_fits(*call.out, *call.in);
      break;
    case Collective::Broadcast:
    case Collective::Recv:
      if (call.peer != rank_) call.out->zero_();
      break;
    default:
      break;  // a reduction leaves this rank's own value in place
  }
  return Work();
}

std::unique_ptr<World> make_simulated_world(int rank, int size) {
  require(rank >= 0 && rank < size, "comm", "rank must be in [0, ", size, "): got ", rank);
  const RankWorld::Options options{rank, size, rank, size, "idle"};
  const Connect connect = [](const Membership& member) {
    return std::make_shared<IdleGroup>(member.name, member.rank, member.size());
  };
  return std::make_unique<RankWorld>(options, connect, nullptr);
}

}  // namespace colossal::comm
