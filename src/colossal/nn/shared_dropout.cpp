#include "colossal/nn/shared_dropout.h"

#include <ATen/ATen.h>

#include "colossal/nn/layers.h"

namespace colossal::nn {

SharedDropout::SharedDropout(Layers& make, const std::string& name, int64_t hidden, double probability,
                             AttendedAxis shared)
    : mask_(make.dropout(name, hidden, probability)),
      probability_(probability),
      dim_(shared == AttendedAxis::First ? 1 : 2) {}

at::Tensor SharedDropout::forward(const at::Tensor& x, const ForwardContext& step) const {
  if (!step.training || probability_ == 0) return x;
  const at::Tensor ones = at::ones({x.size(0), x.size(3 - dim_), x.size(3)}, x.options().requires_grad(false));
  return x * mask_->forward(ones, step).unsqueeze(dim_);
}

}  // namespace colossal::nn
