#include "colossal/comm/decorators/host_staging.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace colossal::comm {
namespace {

/// Keeps what is sent alive, and copies back what arrived.
class Staged : public Work::State {
 public:
  Staged(at::Tensor device_out, at::Tensor host_out, at::Tensor host_in, Work inner)
      : device_out_(std::move(device_out)),
        host_out_(std::move(host_out)),
        host_in_(std::move(host_in)),
        inner_(std::move(inner)) {}
  void wait() override {
    Work(inner_).wait();  // a copy: the watchdog may be asking the other one
    const at::NoGradGuard no_grad;
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
  at::Tensor device_out, out, in;
  if (call.in) in = call.in->detach().to(at::kCPU);
  if (call.out) {
    device_out = call.out->detach();
    out = call.in == call.out ? in : at::empty(call.out->sizes(), call.out->options().device(at::kCPU));
  }
  Call on_host = call;
  on_host.out = call.out ? &out : nullptr;
  on_host.in = call.in ? &in : nullptr;
  Work work = inner_->issue(on_host);
  return Work(std::make_shared<Staged>(std::move(device_out), std::move(out), std::move(in), std::move(work)));
}

}  // namespace colossal::comm
