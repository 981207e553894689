#include "colossal/comm/decorators/host_staging.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace colossal::comm {
namespace {

class CopyBack : public Work::State {
 public:
  CopyBack(at::Tensor device, at::Tensor host, Work inner)
      : device_(std::move(device)), host_(std::move(host)), inner_(std::move(inner)) {}
  void wait() override {
    Work(inner_).wait();  // a copy: the watchdog may be asking the other one
    const at::NoGradGuard no_grad;
    device_.copy_(host_);
  }
  bool done() override { return inner_.done(); }

 private:
  at::Tensor device_, host_;
  Work inner_;
};

class KeepAlive : public Work::State {  // of a host copy that is being sent
 public:
  KeepAlive(at::Tensor host, Work inner) : host_(std::move(host)), inner_(std::move(inner)) {}
  void wait() override { Work(inner_).wait(); }
  bool done() override { return inner_.done(); }

 private:
  at::Tensor host_;
  Work inner_;
};

bool on_host(const at::Tensor& x) { return !x.defined() || x.device().is_cpu(); }
at::Tensor host_copy(const at::Tensor& x) { return x.detach().to(at::kCPU); }
at::Tensor host_like(const at::Tensor& x) { return at::empty(x.sizes(), x.options().device(at::kCPU)); }
Work copy_back(const at::Tensor& device, at::Tensor host, Work inner) {
  return Work(std::make_shared<CopyBack>(device.detach(), std::move(host), std::move(inner)));
}

}  // namespace

Work HostStaging::all_reduce(at::Tensor& x, Reduce op) {
  if (on_host(x)) return inner_->all_reduce(x, op);
  at::Tensor host = host_copy(x);
  Work work = inner_->all_reduce(host, op);
  return copy_back(x, host, std::move(work));
}

Work HostStaging::all_gather(at::Tensor& out, const at::Tensor& in) {
  if (on_host(in)) return inner_->all_gather(out, in);
  at::Tensor host = host_like(out);
  Work work = inner_->all_gather(host, host_copy(in));
  return copy_back(out, host, std::move(work));
}

Work HostStaging::reduce_scatter(at::Tensor& out, const at::Tensor& in, Reduce op) {
  if (on_host(in)) return inner_->reduce_scatter(out, in, op);
  at::Tensor host = host_like(out);
  Work work = inner_->reduce_scatter(host, host_copy(in), op);
  return copy_back(out, host, std::move(work));
}

Work HostStaging::all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                             const std::vector<int64_t>& in_rows) {
  if (on_host(in)) return inner_->all_to_all(out, in, out_rows, in_rows);
  at::Tensor host = host_like(out);
  Work work = inner_->all_to_all(host, host_copy(in), out_rows, in_rows);
  return copy_back(out, host, std::move(work));
}

Work HostStaging::broadcast(at::Tensor& x, int root) {
  if (on_host(x)) return inner_->broadcast(x, root);
  at::Tensor host = host_copy(x);
  Work work = inner_->broadcast(host, root);
  return copy_back(x, host, std::move(work));
}

Work HostStaging::reduce(at::Tensor& x, int root, Reduce op) {
  if (on_host(x)) return inner_->reduce(x, root, op);
  at::Tensor host = host_copy(x);
  Work work = inner_->reduce(host, root, op);
  return copy_back(x, host, std::move(work));
}

Work HostStaging::send(const at::Tensor& x, int to) {
  if (on_host(x)) return inner_->send(x, to);
  at::Tensor host = host_copy(x);
  Work work = inner_->send(host, to);
  return Work(std::make_shared<KeepAlive>(host, std::move(work)));
}

Work HostStaging::recv(at::Tensor& x, int from) {
  if (on_host(x)) return inner_->recv(x, from);
  at::Tensor host = host_like(x);
  Work work = inner_->recv(host, from);
  return copy_back(x, host, std::move(work));
}

Work HostStaging::barrier() { return inner_->barrier(); }

}  // namespace colossal::comm
