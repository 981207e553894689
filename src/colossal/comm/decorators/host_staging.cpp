#include "colossal/comm/decorators/host_staging.h"

#include <ATen/ATen.h>

namespace colossal::comm {
namespace {

/// Keeps the sent tensor alive, and copies the received one back to the device.
class Staged : public Work::State {
 public:
  Staged(at::Tensor device_out, at::Tensor host_out, at::Tensor host_in, Work inner)
      : device_out_(std::move(device_out)),
        host_out_(std::move(host_out)),
        host_in_(std::move(host_in)),
        inner_(std::move(inner)) {}
  void wait() override {
    Work(inner_).wait();  // a copy, because the watchdog may query the original at the same time
    // Transports write bytes without autograd, so a tensor that is saved for backward may be overwritten in place.
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    if (device_out_.defined()) device_out_.copy_(host_out_);
  }
  bool done() override { return inner_.done(); }

 private:
  at::Tensor device_out_, host_out_, host_in_;
  Work inner_;
};

}  // namespace

Work HostStaging::issue(const Call& call) {
  const at::Tensor* x = call.tensor();
  if (!x || !x->defined() || x->device().is_cpu()) return inner_->issue(call);
  const bool is_broadcast = call.collective == Collective::Broadcast, is_root = call.peer == rank();
  const auto on_host_of = [](const at::Tensor& t) { return at::empty(t.sizes(), t.options().device(at::kCPU)); };
  at::Tensor device_out, out, in;
  if (call.in) in = is_broadcast && !is_root ? on_host_of(*call.in) : call.in->detach().to(at::kCPU);
  if (call.out) {
    if (!is_broadcast || !is_root) device_out = call.out->detach();
    out = call.in == call.out ? in : on_host_of(*call.out);
  }
  Call on_host = call;
  on_host.out = call.out ? &out : nullptr;
  on_host.in = call.in ? &in : nullptr;
  Work work = inner_->issue(on_host);
  return Work(std::make_shared<Staged>(std::move(device_out), std::move(out), std::move(in), std::move(work)));
}

}  // namespace colossal::comm
