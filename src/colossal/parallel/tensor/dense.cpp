#include "colossal/parallel/tensor/dense.h"

#include <ATen/ATen.h>

#include "colossal/comm/collectives.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"

namespace colossal::parallel {

TensorDense::TensorDense(nn::Parameters& p, std::shared_ptr<const Layout> layout, const std::string& name, int64_t in,
                         int64_t out, const nn::LinearOptions& o)
    : features_(layout->mesh->group(layout->outside.columns)),
      weight_(p, *layout, name + ".weight", {out, in}, layout->outside,
              {.features = 1, .segments = o.segments, .init = nn::Init::normal(o.deviation), .decay = true}) {
  if (o.bias) bias_.emplace(p, *layout, name + ".bias", std::vector<int64_t>{out}, layout->outside, Table::Options{});
}

at::Tensor TensorDense::forward(const at::Tensor& x) {
  if (features_.size() == 1) return nn::linear(x, weight_.value(), bias_ ? bias_->value() : at::Tensor());
  const at::Tensor share = nn::linear(x, weight_.value(), {});
  const at::Tensor y = comm::reduce_scatter(share, -1, features_);
  return bias_ ? y + bias_->value() : y;
}

}  // namespace colossal::parallel
