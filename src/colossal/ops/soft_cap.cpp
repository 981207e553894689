#include "colossal/ops/soft_cap.h"

#include <ATen/ATen.h>

namespace colossal::ops {

at::Tensor soft_capped(const at::Tensor& logits, double cap) { return cap == 0 ? logits : (logits / cap).tanh() * cap; }

void SoftCap::bend_(const at::Tensor& logits) {
  if (cap_ == 0) return;
  logits.mul_(1 / cap_).tanh_();
  if (with_gradient_) {
    if (!kept_.defined()) kept_ = at::empty(logits.sizes(), logits.options());
    kept_.narrow(0, 0, logits.size(0)).copy_(logits);
  }
  logits.mul_(cap_);
}

void SoftCap::unbend_(at::Tensor gradient) const {
  if (cap_ == 0) return;
  at::tanh_backward_out(gradient, gradient, kept_.narrow(0, 0, gradient.size(0)));
}

}  // namespace colossal::ops
